"""Any ``nn.Module`` as a frozen random network under a mask (Sections 3.1 and 3.3).

Every maskable parameter becomes a stretch of one flat vector: weights, scores, probabilities and masks are
all vectors of that length d. The frozen values are ±σ of the layer, their signs drawn from the seed.
"""

import copy
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

from fedpm.errors import ConfigError
from fedpm.rng import Streams
from fedpm.wire.theta import Vector

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Part:
    """One masked parameter: its place in the flat vector is fixed by the order of the parts."""

    name: str
    shape: tuple[int, ...]
    sigma: float
    fan_in: float
    zero_row: int | None = None  # an embedding's padding row, which must stay zero

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @property
    def dense_sigma(self) -> float:
        """The deviation from which dense training starts: √(2/fan_in), whatever the frozen weights are; 0 of biases."""
        return 0.0 if self.name.rpartition(".")[2] == "bias" else math.sqrt(2) / math.sqrt(self.fan_in)


class MaskedNetwork:
    """A network whose weights are frozen at random ±σ, with a mask over them.

    Args:
        net: the architecture; its own parameter values are not used, and it is never changed.
        init: σ of a layer: ``"kaiming"`` is √(2/fan_in), ``"e"`` is e/√fan_in, ``"half"`` is 2/√fan_in, with which a
            random half of the weights, where such a network starts, passes signals on undiminished.
        frozen: names of parameters, or of modules, that are to keep the value they have in ``net`` unmasked.
    """

    def __init__(self, net: nn.Module, *, init: str = "kaiming", frozen: Collection[str] = ()) -> None:
        self.init = init
        self.frozen = tuple(sorted(frozen))
        gain = {"kaiming": math.sqrt(2), "e": math.e, "half": 2.0}[init]
        self.parts = list(_maskable(net, gain, frozen))
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.aliases = _strip(self.net, {part.name for part in self.parts})
        self.stats = {name: tuple(buffer.shape) for name, buffer in _statistics(self.net)}
        tensors = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        others = {*self.aliases, *self.stats, *(name for name, _ in _counters(self.net))}
        self.constants = {name: tensor.detach() for name, tensor in tensors.items() if name not in others}
        bounds = np.cumsum([0] + [part.size for part in self.parts])
        self._slices = [slice(int(a), int(b)) for a, b in pairwise(bounds)]
        self.size = int(bounds[-1])
        """The number of masked parameters, d."""
        self.stats_size = sum(math.prod(shape) for shape in self.stats.values())
        digest = hashlib.blake2b(self.describe().encode())
        for name, tensor in self.constants.items():
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        self._digest = digest.digest()

    def describe(self) -> str:
        """Return the architecture as one line a parameter, the same wherever the network is the same."""
        lines = [f"{p.name} {'×'.join(map(str, p.shape))} σ={p.sigma:.9g}" for p in self.parts]
        lines += [f"{name} {'×'.join(map(str, shape))} statistics" for name, shape in self.stats.items()]
        lines += [f"{name} {'×'.join(map(str, t.shape))} constant" for name, t in self.constants.items()]
        return "\n".join(lines)

    def fingerprint(self, seed: int) -> int:
        """Return 64 bits that tell this network with this seed from any other."""
        digest = hashlib.blake2b(self._digest + seed.to_bytes(8, "little"), digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def weights(self, seed: int) -> torch.Tensor:
        """Return the frozen weights w_init of a seed: ±σ of each layer (Section 3.3)."""
        weights = Streams(seed).bits("weights", self.size).astype(np.float32)
        weights *= 2
        weights -= 1
        for part, where in self._parts():
            weights[where] *= np.float32(part.sigma)
            if part.zero_row is not None:
                weights[where].reshape(part.shape)[part.zero_row] = 0
        return torch.from_numpy(weights)

    def dense_weights(self, seed: int) -> Vector:
        """Return the weights from which a seed's dense training starts: N(0, 2/fan_in), and biases of zero."""
        weights = Streams(seed).coarse_normal("dense weights", self.size)
        for part, where in self._parts():
            weights[where] *= np.float32(part.dense_sigma)
            if part.zero_row is not None:
                weights[where].reshape(part.shape)[part.zero_row] = 0
        return weights

    def layers(self) -> npt.NDArray[np.uint8]:
        """Return which part each weight belongs to; parts beyond the 255th share a number."""
        numbers = np.minimum(np.arange(len(self.parts)), 255).astype(np.uint8)
        return np.repeat(numbers, [part.size for part in self.parts])

    def pieces(self, vector: Vector) -> list[Vector]:
        """Return a flat vector as views of its parts."""
        return [vector[where] for where in self._slices]

    def initial_stats(self) -> Vector:
        """Return the norm layers' statistics before any training, as one flat vector."""
        values = [buffer.numpy().ravel() for _, buffer in _statistics(self.net)]
        return np.concatenate([np.zeros(0, np.float32), *values])

    def surroundings(self, stats: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return all tensors beside the masked weights, on the device of the flat ``stats``, which they view.

        They are fresh for each use, because modules may change them in training mode.
        """
        counters = {name: torch.zeros_like(tensor, device=stats.device) for name, tensor in _counters(self.net)}
        constants = {name: tensor.to(stats.device, copy=True) for name, tensor in self.constants.items()}
        return {**constants, **counters, **self.stats_views(stats)}

    def forward(
        self, weights: Mapping[str, torch.Tensor], rest: Mapping[str, torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """Run the network on a batch with the given masked weights, by name, and surroundings."""
        output: torch.Tensor = functional_call(self.net, {**weights, **rest}, (x,))
        return output

    def views(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters as views of a flat vector."""
        pieces = torch.split(weights, [part.size for part in self.parts])
        return {part.name: piece.view(part.shape) for part, piece in zip(self.parts, pieces, strict=True)}

    def stats_views(self, stats: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the statistics as views of a flat vector."""
        pieces = torch.split(stats, [math.prod(shape) for shape in self.stats.values()])
        return {n: piece.view(s) for (n, s), piece in zip(self.stats.items(), pieces, strict=True)}

    def module(
        self, weights: torch.Tensor | Vector, stats: Vector, constants: Mapping[str, torch.Tensor] | None = None
    ) -> nn.Module:
        """Return an ordinary module in eval mode that owns the given weights, statistics and constants."""
        net = copy.deepcopy(self.net)
        views = self.views(torch.as_tensor(weights))
        values = {first: nn.Parameter(views[first].clone(), requires_grad=False) for first in views}
        for name, first in self.aliases.items():
            _set(net, name, values[first])
        for name, value in {**self.stats_views(torch.from_numpy(stats)), **(constants or {})}.items():
            _set(net, name, value.clone())
        return net.eval()

    def masked_module(self, mask: npt.NDArray[Any], seed: int, stats: Vector) -> nn.Module:
        """Return an ordinary module in eval mode: the frozen weights of a seed under a mask."""
        return self.module(torch.from_numpy(mask) * self.weights(seed), stats)

    def _parts(self) -> Iterator[tuple[Part, slice]]:
        return zip(self.parts, self._slices, strict=True)


def _set(net: nn.Module, name: str, value: torch.Tensor) -> None:
    prefix, _, own = name.rpartition(".")
    owner = net.get_submodule(prefix)
    if own in owner._parameters and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=False)
    setattr(owner, own, value)


def _strip(net: nn.Module, masked: Collection[str]) -> dict[str, str]:
    """Drop the values of masked parameters, and return every name of each beside its first name.

    Only the shapes are needed. A parameter that two layers share has several names and stays shared.
    """
    first = {id(parameter): name for name, parameter in net.named_parameters()}
    aliases = {n: first[id(p)] for n, p in net.named_parameters(remove_duplicate=False) if first[id(p)] in masked}
    empty = {n: nn.Parameter(p.to("meta"), requires_grad=False) for n, p in net.named_parameters() if n in masked}
    for name, original in aliases.items():
        _set(net, name, empty[original])
    return aliases


def _statistics(net: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the running statistics of norm layers, which are learned without gradients."""
    return _norm_buffers(net, ("running_mean", "running_var"))


def _counters(net: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the step counters of norm layers, which start anew on every client."""
    return _norm_buffers(net, ("num_batches_tracked",))


def _norm_buffers(net: nn.Module, names: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            for name in names:
                yield f"{prefix}.{name}".lstrip("."), getattr(module, name)


def _maskable(net: nn.Module, gain: float, frozen: Collection[str]) -> Iterator[Part]:
    """Yield the parameters to mask in the module's order; refuse by name what can be neither masked nor kept."""
    refused = []
    left = set(frozen)
    owners = dict(net.named_modules())
    for name, parameter in net.named_parameters():
        prefix, _, own = name.rpartition(".")
        keep = {f for f in frozen if name == f or name.startswith(f"{f}.")}
        left -= keep
        fan_in = _fan_in(owners[prefix])
        if keep:
            continue
        if fan_in is None or own not in ("weight", "bias") or nn.parameter.is_lazy(parameter):
            refused.append(f"{name} ({type(owners[prefix]).__name__})")
        else:
            row = owners[prefix].padding_idx if isinstance(owners[prefix], nn.Embedding) else None
            yield Part(name, tuple(parameter.shape), gain / math.sqrt(fan_in), fan_in, row)
    if left:
        raise ConfigError(f"frozen names {', '.join(sorted(left))}: the network has no such parameter or module")
    if refused:
        raise ConfigError(
            f"cannot mask {', '.join(refused)}: only weights and biases of linear, convolution and embedding "
            "layers are masked; use norm layers without affine parameters, or name it in frozen=[...] to keep its value"
        )


def _fan_in(module: nn.Module) -> float | None:
    """Return how many inputs reach one output of a layer, or None for a layer that cannot be masked."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, _CONVS):
        return module.in_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, _TRANSPOSED):  # each output sees the kernel thinned by the stride
        reach = math.prod(module.kernel_size) / math.prod(module.stride)
        return module.in_channels // module.groups * max(1.0, reach)
    if isinstance(module, nn.Embedding) and module.max_norm is None:
        return 1  # one row is looked up
    return None
