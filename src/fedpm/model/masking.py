"""Any ``nn.Module`` as a frozen network under a mask (Sections 3.1 and 3.3).

Every maskable parameter becomes a stretch of one flat vector: weights, scores, probabilities and masks are
all vectors of that length d. The frozen values are ±σ of the layer, their signs drawn from the seed, or given.
"""

import copy
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

from fedpm.errors import ConfigError
from fedpm.model.kinds import Part, Selectors, kinds_of
from fedpm.model.outputs import logits_of
from fedpm.model.start import starting_weights
from fedpm.model.still import Tail, base_hash, norm_buffers, still_modules
from fedpm.rng import Streams
from fedpm.wire.theta import Vector

COUNTERS = ("num_batches_tracked",)
"""Steps of norm layers, which start anew on every client."""
KEEP = 0.98
"""Where θ starts over given weights: near 1, so that the first network is the given one."""


class MaskedNetwork:
    """A network whose weights are frozen, at random ±σ or at given values, with a mask over them.

    Args:
        net: the architecture; it is never changed.
        weights: ``"random"``: of masked parameters the values in ``net`` are not used; ``"given"``: they are kept.
        keep: θ of every masked weight before any training, if weights are given.
        init: σ of a layer and where θ starts (``fedpm.model.start``): ``"kaiming"`` is √(2/fan_in), ``"e"`` is
            e/√fan_in, ``"half"`` and ``"zero-sum"`` 2/√fan_in, for half of the weights pass on half of the power.
        frozen: which parameters keep the value they have in ``net``: names, patterns or classes of modules.
        trained: which are trained as floats, from the value they have.
        masked: which are masked; of what nothing is said, whatever a mask suits.
        affine: what becomes of the rest, such as scales of norm layers: ``"trained"`` or ``"frozen"``; ``"auto"``:
            frozen if weights are given, which are good already, and trained otherwise.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        init: str = "kaiming",
        weights: str = "random",
        keep: float = KEEP,
        frozen: Selectors = (),
        trained: Selectors = (),
        masked: Selectors = (),
        affine: str = "auto",
    ) -> None:
        self.init, given = init, weights == "given"
        self.keep = keep if given else None
        gain = {"kaiming": math.sqrt(2), "e": math.e, "half": 2.0, "zero-sum": 2.0}[init]
        rest = affine if affine != "auto" else "frozen" if given else "trained"
        kinds = kinds_of(net, gain, frozen=frozen, trained=trained, masked=masked, rest=rest)
        self.parts, self.trained, self.frozen = kinds.masked, tuple(kinds.trained), tuple(kinds.frozen)
        self.net = _copied(net).requires_grad_(False)
        self.aliases = _aliases(self.net, {*(part.name for part in self.parts), *self.trained})
        self.still = still_modules(self.net, self.aliases) if given else ()
        """The modules that a given network uses as they are, in eval mode: nothing in them is masked or trained."""
        values = [self.net.get_parameter(part.name).flatten().to(torch.float32) for part in self.parts]
        self.given = torch.cat(values).cpu() if given else None
        _strip(self.net, {part.name for part in self.parts}, self.aliases)
        self.stats = {name: tuple(tensor.shape) for name, tensor in self._floats()}
        """Shapes of what travels as floats, by name: statistics of norm layers, then trained parameters."""
        tensors = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        others = {*self.aliases, *self.stats, *(name for name, _ in norm_buffers(self.net, COUNTERS))}
        self.constants = {name: tensor.detach() for name, tensor in tensors.items() if name not in others}
        bounds = np.cumsum([0] + [part.size for part in self.parts])
        self._slices = [slice(int(a), int(b)) for a, b in pairwise(bounds)]
        self.size = int(bounds[-1])
        """The number of masked parameters, d."""
        self.stats_size = sum(math.prod(shape) for shape in self.stats.values())
        self.base = None if self.given is None else base_hash(self.views(self.given), self.constants)
        """SHA-256 of what a given network has and no training changes; None of a random one."""
        digest = hashlib.blake2b(self.describe().encode())
        fixed = {**self.constants, **{name: self.net.get_parameter(name) for name in self.trained}}
        for name, tensor in fixed.items():
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        digest.update(f"{self.base} {keep}".encode() if given else b"zero-sum" if init == "zero-sum" else b"")
        self._digest = digest.digest()

    def describe(self) -> str:
        """Return the architecture as one line a parameter, the same wherever the network is the same."""
        given = self.given is not None
        sigma = ["given" if given else f"σ={part.sigma:.9g}" for part in self.parts]
        lines = [f"{p.name} {'×'.join(map(str, p.shape))} {s}" for p, s in zip(self.parts, sigma, strict=True)]
        kinds = {name: "trained" if name in self.trained else "statistics" for name in self.stats}
        lines += [f"{name} {'×'.join(map(str, shape))} {kinds[name]}" for name, shape in self.stats.items()]
        lines += [f"{name} {'×'.join(map(str, t.shape))} constant" for name, t in self.constants.items()]
        return "\n".join(lines)

    def fingerprint(self, seed: int) -> int:
        """Return 64 bits that tell this network with this seed from any other."""
        digest = hashlib.blake2b(self._digest + seed.to_bytes(8, "little"), digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def weights(self, seed: int) -> torch.Tensor:
        """Return the frozen weights w_init: ±σ of each layer by the seed (Section 3.3), or those that were given."""
        if self.given is not None:
            return self.given
        weights = Streams(seed).bits("weights", self.size).astype(np.float32)
        weights *= 2
        weights -= 1
        for part, where in self._parts():
            weights[where] *= np.float32(part.sigma)
            if part.zero_row is not None:
                weights[where].reshape(part.shape)[part.zero_row] = 0
        return torch.from_numpy(weights)

    def dense_weights(self, seed: int) -> Vector:
        """Return the weights from which dense training starts: N(0, 2/fan_in) and biases of zero, or those given."""
        return starting_weights(self, seed) if self.given is None else self.given.numpy()

    def layers(self) -> npt.NDArray[np.uint8]:
        """Return which part each weight belongs to; parts beyond the 255th share a number."""
        numbers = np.minimum(np.arange(len(self.parts)), 255).astype(np.uint8)
        return np.repeat(numbers, [part.size for part in self.parts])

    def pieces(self, vector: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return a flat vector as views of its parts."""
        return [vector[where] for where in self._slices]

    def initial_stats(self) -> Vector:
        """Return the norm layers' statistics and the trained parameters before any training, as one flat vector."""
        values = [tensor.numpy().ravel() for _, tensor in self._floats()]
        return np.concatenate([np.zeros(0, np.float32), *values])

    def surroundings(self, stats: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return all tensors beside the masked weights, on the device of the flat ``stats``, which they view.

        They are fresh for each use, because modules may change them in training mode.
        """
        counters = {
            name: torch.zeros_like(tensor, device=stats.device) for name, tensor in norm_buffers(self.net, COUNTERS)
        }
        constants = {name: tensor.to(stats.device, copy=True) for name, tensor in self.constants.items()}
        return {**constants, **counters, **self.stats_views(stats)}

    def forward(
        self, weights: Mapping[str, torch.Tensor], rest: Mapping[str, torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """Run the network on a batch with the given masked weights, by name, and surroundings."""
        return logits_of(functional_call(self.net, {**weights, **rest}, (x,)))

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
        floats = self.stats_views(torch.from_numpy(stats))
        trained = {name: floats.pop(name) for name in self.trained}
        values = {first: nn.Parameter(v.clone(), requires_grad=False) for first, v in {**views, **trained}.items()}
        for name, first in self.aliases.items():
            _set(net, name, values[first])
        for name, value in {**floats, **(constants or {})}.items():
            _set(net, name, value.clone())
        return net.eval()

    def masked_module(self, mask: npt.NDArray[Any], seed: int, stats: Vector) -> nn.Module:
        """Return an ordinary module in eval mode: the frozen weights of a seed under a mask."""
        return self.module(torch.from_numpy(mask) * self.weights(seed), stats)

    def train(self) -> None:
        """Put the modules that train into training mode."""
        self.net.train()
        for name in self.still:
            self.net.get_submodule(name).eval()

    def tail(self, skip: int) -> "MaskedNetwork":
        """Return the same network for inputs that have passed the first ``skip`` of its children already."""
        if not skip:
            return self
        tail = copy.copy(self)
        tail.net = Tail(self.net, skip)
        passed = tuple(f"{name}." for name, _ in list(self.net.named_children())[:skip])
        tail.constants = {name: value for name, value in self.constants.items() if not name.startswith(passed)}
        return tail

    def whole(self) -> nn.Module:
        """Return the network as it was given, to build it again: of random weights only the form matters."""
        return self.net if self.given is None else self.module(self.given, self.initial_stats())

    def _floats(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from norm_buffers(self.net, ("running_mean", "running_var"), but=self.still)
        for name in self.trained:
            yield name, self.net.get_parameter(name)

    def _parts(self) -> Iterator[tuple[Part, slice]]:
        return zip(self.parts, self._slices, strict=True)


def _copied(net: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:  # such as of torch.nn.utils.weight_norm
        raise ConfigError(
            f"the network cannot be copied ({str(error).split('.')[0]}); of old weight or spectral norms use those in "
            "torch.nn.utils.parametrizations"
        ) from None


def _set(net: nn.Module, name: str, value: torch.Tensor) -> None:
    prefix, _, own = name.rpartition(".")
    owner = net.get_submodule(prefix)
    if own in owner._parameters and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=False)
    setattr(owner, own, value)


def _aliases(net: nn.Module, names: Collection[str]) -> dict[str, str]:
    """Return every name of each parameter beside its first one: what two layers share stays shared."""
    first = {id(parameter): name for name, parameter in net.named_parameters()}
    return {n: first[id(p)] for n, p in net.named_parameters(remove_duplicate=False) if first[id(p)] in names}


def _strip(net: nn.Module, masked: Collection[str], aliases: Mapping[str, str]) -> None:
    """Drop the values of masked parameters, of which only the shapes are needed."""
    empty = {n: nn.Parameter(p.to("meta"), requires_grad=False) for n, p in net.named_parameters() if n in masked}
    for name, first in aliases.items():
        if first in masked:
            _set(net, name, empty[first])
