"""FedMRN (Li et al. 2024): a change of weights is noise that both ends draw, times a mask that the client sends.

Clients train for it: each step sees the change through a sampled mask, more and more of it as the round goes on
(``training.masked_noise``). A mask of {0, 1} keeps a number of the noise or not, one of {−1, 1} turns its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.methods.base import Ingredients
from fedpm.methods.dense.layered import mixed, read_setting, write_setting
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.registry import Settings, setting
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.masks import entropy, sample_mask
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.local import Local
    from fedpm.training.masked_noise import MaskedNoiseTrainer

CLASSES = 8


@dataclass(frozen=True)
class MaskedNoise:
    """Masks of {0, 1}, or {−1, 1} if ``signed``, over noise n that is uniform in ±``noise``.

    n·m is unbiased for the change cut to what masks can reach: between 0 and n, or between −n and n.
    """

    noise: float = 0.03
    signed: bool = False

    @property
    def lowest(self) -> int:
        """The mask's other value beside 1."""
        return -1 if self.signed else 0

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send a sample of the mask, coded in contexts of its layer and of the size of n.

        Large noise is rarely kept, small noise half the time: what both ends know of n takes bits off the mask.
        """
        unit, order = self.unit(network.size, shared), mixed(network.size)
        with np.errstate(over="ignore"):  # a change out of reach is cut
            reached = (delta / (unit * np.float32(self.noise))).clip(self.lowest, 1)
        chances: Vector = (reached - np.float32(self.lowest)) / np.float32(1 - self.lowest)
        ones = sample_mask(chances, rng.uint32("mask", network.size))
        coded = encode(ones[order], self.contexts(unit, network)[order], 2)
        data = write_setting(self.noise) + write_setting(self.lowest) + coded.data
        return Quantised(Coded(data, coded.ideal_bits + 64), entropy(float(ones.mean())))

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return n·m."""
        rest = read_setting(data, self.noise, "fedmrn.noise")
        rest = read_setting(rest, self.lowest, "lowest value of a mask (fedmrn.signed)")
        unit, order = self.unit(network.size, shared), mixed(network.size)
        ones = np.empty(network.size, np.bool_)
        ones[order] = decode(rest, self.contexts(unit, network)[order], 2)
        change: Vector = np.where(ones, np.float32(1), np.float32(self.lowest)) * (unit * np.float32(self.noise))
        return change

    def unit(self, size: int, shared: Streams) -> Vector:
        """Return the noise in units of its bound: odd multiples of 2⁻²⁴, so never 0, and exact on every machine."""
        numbers = (shared.uint32("noise", size) >> np.uint32(8)).astype(np.int32)
        unit: Vector = (2 * numbers + 1 - 2**24).astype(np.float32) * np.float32(2.0**-24)
        return unit

    def contexts(self, unit: Vector, network: MaskedNetwork) -> npt.NDArray[np.uint16]:
        """Return the contexts of the masks: a layer's classes of |n| stand side by side."""
        classes: npt.NDArray[np.uint16] = np.minimum(np.abs(unit) * CLASSES, CLASSES - 1).astype(np.uint16)
        return network.layers().astype(np.uint16) * np.uint16(CLASSES) + classes


class FedMRNSettings(Settings):
    """The noise and the masks of FedMRN."""

    noise: float = setting(0.03, "bound of the uniform noise, the most that a weight changes in a round", gt=1e-30)
    signed: bool = setting(False, "masks of −1 and 1 instead of 0 and 1")


def trainer(given: Ingredients, local: Local, masked: MaskedNoise) -> MaskedNoiseTrainer:
    """Return the training that sees changes through the masks."""
    from fedpm.training.masked_noise import MaskedNoiseTrainer

    noise = partial(_noise, masked, given.network.size, given.seed)
    return MaskedNoiseTrainer(given.network, local, noise, masked.lowest)


def _noise(masked: MaskedNoise, size: int, seed: int, rng: Streams) -> Vector:
    """Return the noise of a client's round as the server draws it, whatever the client's own streams are."""
    return masked.unit(size, Streams(seed).at(rng.round, rng.client)) * np.float32(masked.noise)


register_quantiser(
    "fedmrn",
    "FedMRN",
    about="masks over noise that is added to the weights",
    form=22,
    quantiser=lambda settings: MaskedNoise(settings.noise, settings.signed),
    settings=FedMRNSettings,
    trainer=trainer,
)
