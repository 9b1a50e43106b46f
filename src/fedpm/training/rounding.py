"""θ rounded to a mask that keeps what layers give: greedy path following, after Lybrand and Saab (arXiv 2010.15979).

θ > 0.5 rounds every weight by itself, and the errors of a unit's weights add up in its output. Here its weights are
rounded one after another, and each takes up what the ones before it have left: on a few inputs, that the server holds
out and whose labels are not used, the layers under the mask then give nearly what they give under θ ⊙ w.
"""

import hashlib
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
BATCH = 16
ROWS = 4096
"""How many inputs of a layer, of all its inputs at all places, at most."""
RIDGE = 1.0
"""How much a weight's own θ counts, in mean squares of the layer's inputs: what fits few inputs may not fit others."""
BLOCK = 64
"""Columns whose sums are made together."""


class Calibration:
    """Rounds θ of a network, on inputs that have passed its first ``skip`` children."""

    def __init__(self, network: MaskedNetwork, inputs: Array, skip: int, device: torch.device) -> None:
        self._network, self._inputs, self._skip, self._device = network, inputs, skip, device
        self._last = b"", np.zeros(0, np.uint8)

    @classmethod
    def of(cls, network: MaskedNetwork, shard: Shard, device: torch.device) -> Self:
        """Return what rounds θ on some of the examples, evenly spread over all of them."""
        chosen = np.unique(np.linspace(0, len(shard) - 1, min(EXAMPLES, len(shard))).astype(np.intp))
        return cls(network, shard.x[chosen], skipped(shard), device)

    def mask(self, theta: Vector, frozen: torch.Tensor, stats: Vector) -> Mask:
        """Return a mask of which each layer gives about what it gives under θ; of the last θ it is remembered."""
        key = hashlib.blake2b(theta.tobytes() + stats.tobytes()).digest()
        if self._last[0] != key:
            with threads(1):  # sums depend on their number, and a resumed run ends in the same bits
                self._last = key, self._rounded(torch.from_numpy(theta), frozen, stats).numpy()
        return self._last[1]

    @torch.inference_mode()
    def _rounded(self, theta: torch.Tensor, frozen: torch.Tensor, stats: Vector) -> torch.Tensor:
        mask = (theta > 0.5).to(torch.uint8)
        thetas, weights, masks = (self._network.views(vector) for vector in (theta, frozen, mask))
        net = self._network.module(theta * frozen, stats).to(self._device)
        for name, inputs in self._inputs_of_layers(net).items():
            probability, weight = (rows[name].flatten(1).to(self._device) for rows in (thetas, weights))
            masks[name].copy_(greedy(inputs, probability, weight).reshape(masks[name].shape))
        return mask

    def _inputs_of_layers(self, net: nn.Module) -> dict[str, torch.Tensor]:
        """Return what the layers are given whose weights are masked, a row for each output that they make of it."""
        seen: dict[str, list[torch.Tensor]] = {}
        share = ROWS // -(-len(self._inputs) // BATCH)

        def look(name: str, layer: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            if not given:
                return  # by keyword
            rows = _rows(layer, given[0])
            chosen = torch.linspace(0, len(rows) - 1, min(share, len(rows)), device=rows.device).long()
            seen.setdefault(name, []).append(rows[chosen])

        names = list(self._network.aliases.values())
        for part in self._network.parts:
            layer = net.get_submodule(part.name.rpartition(".")[0])
            if part.name.endswith("weight") and _linear(layer) and names.count(part.name) == 1:
                layer.register_forward_pre_hook(partial(look, part.name))
        whole = Tail(net, self._skip) if self._skip else net
        for start in range(0, len(self._inputs), BATCH):
            whole(to_input(self._inputs[start : start + BATCH], self._device))
        inputs = {name: torch.cat(rows) for name, rows in seen.items()}
        return {name: rows for name, rows in inputs.items() if rows.isfinite().all()}  # a diverged network has others


def greedy(inputs: torch.Tensor, theta: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mask of a layer, whose units are the rows of ``weights``; ``inputs`` has a column for each weight."""
    squares = inputs.square().sum(0)
    order = squares.argsort(descending=True, stable=True)  # what moves outputs most goes first
    wanted, frozen = (theta * weights).T[order], weights.T[order]
    halves, damped = frozen.square() / 2, (squares + RIDGE * squares.mean())[order]
    left = torch.empty_like(wanted)  # wanted less kept
    error = inputs.new_zeros(len(inputs), len(weights))  # of the units' outputs, so far
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
    """Return the input of a layer as rows, each of which makes one output of every unit."""
    if isinstance(layer, nn.Conv2d):
        patches = F.unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        return patches.transpose(1, 2).flatten(0, 1)
    return given.flatten(0, -2)
