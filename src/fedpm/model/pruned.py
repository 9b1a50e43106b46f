"""A network pruned before training: of its random weights those stay that carry most of what flows through it.

The saliency of a weight is |w · ∂R/∂w|, where R is the sum of the outputs for an input of ones, all weights replaced
by their magnitudes (synaptic flow, Tanaka et al. 2020). No example is looked at, so both ends find the same weights.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpm.model.masking import MaskedNetwork
from fedpm.wire.theta import Vector


def saliency(network: MaskedNetwork, seed: int, example: npt.NDArray[Any]) -> Vector:
    """Return the saliency of each weight of a seed's dense start, the largest being 1; of ``example`` the form counts.

    It is computed in float64 and rounded, so that machines which add in another order agree.
    """
    magnitudes = torch.from_numpy(network.dense_weights(seed)).double().abs()
    weights = {name: view.detach().requires_grad_() for name, view in network.views(magnitudes).items()}
    around = network.surroundings(torch.from_numpy(network.initial_stats()))
    rest = {name: tensor.double().abs() if tensor.is_floating_point() else tensor for name, tensor in around.items()}
    whole = np.issubdtype(example.dtype, np.integer) and example.dtype != np.uint8  # words, not pixels
    ones = torch.ones(example.shape, dtype=torch.int64 if whole else torch.float64)
    training = network.net.training
    network.net.eval()
    network.forward(weights, rest, ones).sum().backward()  # type: ignore[no-untyped-call]
    network.net.train(training)
    flows = [torch.zeros_like(w) if w.grad is None else (w.grad * w.detach()).abs() for w in weights.values()]
    flow = np.nan_to_num(torch.cat([one.flatten() for one in flows]).numpy())
    scaled: Vector = (flow / max(flow.max(), np.finfo(np.float64).tiny)).astype(np.float32)
    return scaled


class PrunedNetwork(MaskedNetwork):
    """The ``kept`` weights of a network as a vector of their own, for masks over these alone.

    Its frozen weights are those from which a seed's dense training starts, and 0 where they were pruned.
    """

    def __init__(self, whole: MaskedNetwork, seed: int, keep: float, example: npt.NDArray[Any]) -> None:
        self.__dict__.update(vars(whole))
        self._all = whole
        self.init = "half" if whole.init == "zero-sum" else whole.init  # the units are not whole
        self.size = max(1, round(keep * whole.size))
        order = np.argsort(-saliency(whole, seed, example), kind="stable")
        self.kept: npt.NDArray[np.int64] = np.sort(order[: self.size])

    def layers(self) -> npt.NDArray[np.uint8]:
        """Return which part each kept weight belongs to."""
        return super().layers()[self.kept]

    def weights(self, seed: int) -> torch.Tensor:
        """Return all weights, the pruned ones as 0."""
        return torch.from_numpy(self.spread(self._all.dense_weights(seed)[self.kept]))

    def spread(self, values: npt.NDArray[Any], elsewhere: float = 0) -> npt.NDArray[Any]:
        """Return a vector of all weights with these values at the kept ones."""
        whole = np.full(self._all.size, elsewhere, values.dtype)
        whole[self.kept] = values
        return whole

    def fingerprint(self, seed: int) -> int:
        """Return 64 bits that tell this network, and which of its weights were kept, from any other."""
        digest = hashlib.blake2b(self.kept.astype("<i8").tobytes(), digest_size=8)
        return super().fingerprint(seed) ^ int.from_bytes(digest.digest(), "little")
