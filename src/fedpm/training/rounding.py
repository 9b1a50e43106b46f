"""θ rounded to a mask that keeps what layers give: greedy path following, after Lybrand and Saab (arXiv 2010.15979).

θ > 0.5 rounds every weight by itself, and the errors of a unit's weights add up in its output. Here its weights are
rounded one after another, and each takes up what the ones before it have left: on a few inputs, that the server holds
out and whose labels are not used, the layers under the mask then give nearly what they give under θ ⊙ w.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedpm.data.datasets import Array, Shard, to_input
from fedpm.model.masking import MaskedNetwork
from fedpm.model.still import Tail
from fedpm.training.device import threads
from fedpm.training.features import skipped
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Vector

EXAMPLES = 256
"""How many inputs are looked at, at most."""
NUMBERS = 2**26
"""How many numbers a layer may be given of all of them; of a network with larger layers fewer inputs are looked at."""
ROWS = 4096
"""How many inputs of a layer, of all its inputs at all places, at most."""
RIDGE = 0.3
"""How much a weight's own θ counts, in mean squares of the layer's inputs: what fits few inputs may not fit others."""
BATCH, BLOCK = 16, 64
"""Images of which rows are made together, and columns whose sums are."""

Look = Callable[[str, nn.Module, torch.Tensor], None]


class Calibration:
    """Rounds θ of a network, on inputs that have passed its first ``skip`` children."""

    def __init__(self, network: MaskedNetwork, inputs: Array, skip: int, device: torch.device) -> None:
        self._network, self._inputs, self._skip, self._device = network, inputs, skip, device
        self._last = b"", np.zeros(0, np.uint8)

    @classmethod
    def of(cls, network: MaskedNetwork, shard: Shard, device: torch.device) -> Self:
        """Return what rounds θ on some of the examples, evenly spread over all of them."""
        return cls(network, shard.x[_spread(len(shard), EXAMPLES)], skipped(shard), device)

    def mask(self, theta: Vector, frozen: torch.Tensor, stats: Vector) -> Mask:
        """Return a mask of which each layer gives about what it gives under θ; of the last θ it is remembered."""
        key = hashlib.blake2b(theta.tobytes() + stats.tobytes()).digest()
        if self._last[0] != key:
            with threads(1):  # sums depend on their number, and a resumed run ends in the same bits
                self._last = key, self._rounded(torch.from_numpy(theta), frozen, stats).numpy()
        return self._last[1]

    @torch.inference_mode()
    def _rounded(self, theta: torch.Tensor, frozen: torch.Tensor, stats: Vector) -> torch.Tensor:
        """Round layer after layer: each also takes up what those before it have changed in its inputs."""
        mask = (theta > 0.5).to(torch.uint8)
        thetas, weights, masks = (self._network.views(vector) for vector in (theta, frozen, mask))
        sizes, under_theta = [1], dict[str, torch.Tensor]()

        def measure(name: str, layer: nn.Module, given: torch.Tensor) -> None:
            sizes.append(given.numel())

        def note(name: str, layer: nn.Module, given: torch.Tensor) -> None:
            if name not in under_theta:  # of a layer that is used twice the first use
                under_theta[name] = _rows(layer, given)

        def settle(name: str, layer: nn.Module, given: torch.Tensor) -> None:
            wanted = under_theta.pop(name, None)
            if wanted is None:
                return  # settled already
            inputs = _rows(layer, given)
            if wanted.shape != inputs.shape or not (wanted.isfinite().all() and inputs.isfinite().all()):
                return  # routed elsewhere under the mask, or diverged
            probability, weight = (rows[name].flatten(1).to(self._device) for rows in (thetas, weights))
            change = (wanted - inputs) @ (probability * weight).T
            masks[name].copy_(greedy(inputs, probability, weight, change).reshape(masks[name].shape))
            layer.get_parameter("weight").copy_(masks[name] * weights[name])

        self._run(theta * frozen, stats, self._inputs[:1], measure)
        inputs = self._inputs[_spread(len(self._inputs), max(1, NUMBERS // max(sizes)))]
        self._run(theta * frozen, stats, inputs, note)
        self._run(mask * frozen, stats, inputs, settle)
        return mask

    def _run(self, weights: torch.Tensor, stats: Vector, inputs: Array, look: Look) -> None:
        """Run a network on some inputs, and look at what the layers are given whose weights are masked."""
        net = self._network.module(weights, stats).to(self._device)

        def see(name: str, layer: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            if given:  # else by keyword
                look(name, layer, given[0])

        names = list(self._network.aliases.values())
        for part in self._network.parts:
            layer = net.get_submodule(part.name.rpartition(".")[0])
            if part.name.endswith("weight") and _linear(layer) and names.count(part.name) == 1:
                layer.register_forward_pre_hook(partial(see, part.name))
        whole = Tail(net, self._skip) if self._skip else net
        whole(to_input(inputs, self._device))


def greedy(inputs: torch.Tensor, theta: torch.Tensor, weights: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Return the mask of a layer, whose units are the rows of ``weights``; ``inputs`` has a column for each weight.

    Args:
        inputs: of the layer, under the masks of the layers before it.
        theta: of its weights.
        weights: which may be kept.
        change: what its outputs lack for those masks.
    """
    squares = inputs.square().sum(0)
    order = squares.argsort(descending=True, stable=True)  # what moves outputs most goes first
    wanted, frozen = (theta * weights).T[order], weights.T[order]
    damped = (squares + RIDGE * squares.mean()).clamp_(min=torch.finfo(squares.dtype).tiny)[order]
    halves = frozen.square() / 2
    left = torch.empty_like(wanted)  # wanted less kept
    error = change.clone()  # of the units' outputs, so far
    for start in range(0, len(order), BLOCK):
        block = slice(start, start + BLOCK)
        columns = inputs[:, order[block]]
        products, pulls = columns.T @ columns, columns.T @ error
        for at, place in enumerate(range(start, start + len(pulls))):
            kept = (wanted[place] + pulls[at] / damped[place]) * frozen[place] > halves[place]
            left[place] = wanted[place] - kept * frozen[place]
            pulls[at + 1 :].addr_(products[at, at + 1 :], left[place])
        error.addmm_(columns, left[block])
    kept = ((wanted - left) * frozen > halves)[order.argsort()].T
    return torch.where(weights == 0, theta > 0.5, kept)


def _linear(layer: nn.Module) -> bool:
    """Return whether a layer's output is its weights times rows of its input."""
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def _rows(layer: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Return inputs of a layer as rows, each of which makes one output of every unit: some of them, evenly spread."""
    if not isinstance(layer, nn.Conv2d):
        rows = given.flatten(0, -2)
        return rows[_spread(len(rows), ROWS)]
    share, found = ROWS // -(-len(given) // BATCH), []
    for images in torch.split(given, BATCH):
        patches = F.unfold(images, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        rows = patches.transpose(1, 2).flatten(0, 1)
        found.append(rows[_spread(len(rows), share)])
    return torch.cat(found)


def _spread(size: int, most: int) -> Array:
    """Return at most so many places, evenly spread."""
    return np.unique(np.linspace(0, size - 1, min(most, size)).astype(np.intp))
