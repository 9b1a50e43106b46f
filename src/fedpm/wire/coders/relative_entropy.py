"""Relative-entropy coding of a mask: it pays for what a client learned, KL(θ_k ‖ θ_g), not for the sample's chance.

Minimal random coding (Havasi et al. 2019), for masks as in KLMS (Isik et al. 2024). Both ends draw the same candidate
masks from Bern(θ_g), 2^b of them for each piece of the network. The client sends the index of one, drawn in proportion
to a power of the likelihood ratio Bern(θ_k)/Bern(θ_g); the server draws just that one. With the power 1 the mask would
stay too near to θ_g, the more so the fewer bits an index has beyond the KL of its piece; so each piece has the power
at which the mean of the log-likelihood ratio over its candidates is that of Bern(θ_k) (docs/coding.md).
"""

import struct
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from fedpm.errors import WireError
from fedpm.registry import CoderSpec, Settings, register, setting
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.blocks import LENGTHS, MAX_CUTS, Plan, cut_rows, in_blocks, layers, most_cuts, order
from fedpm.wire.coders.candidates import UNIT, Candidates, drawn, parts
from fedpm.wire.entropy import AnsCoder, Coded, close_stack, decode, encode, models, open_stack, to_bytes
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta, Vector

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]

MAX_INDEX_BITS = 12
FLOOR = 3  # candidates are drawn from a θ_g of at least 3/256 and at most 253/256, or nothing could be learned there
_SKEW = np.float32(1 / 16)  # what is added to the evidence of a bit that is rare under θ_g (``_evidence``)
_HEAD = struct.Struct("<BI")  # index bits, bytes of the cuts


@dataclass(frozen=True)
class RelativeEntropy:
    """The coder: indices of ``index_bits`` b for pieces that carry ``budget`` bits of KL, on average over a layer."""

    index_bits: int = 8
    budget: float = 4.0

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask from candidates that both ends know, and send which they were."""
        known = _Known.of(context)
        evidence, expected, bits = _evidence(theta[known.order], known.proposal)
        plans = [self._plan(bits[layer]) for layer in known.layers]
        chance = private.uint32("index", sum(plan.count for plan in plans))
        index = np.empty(len(chance), np.int32)
        done = 0
        for number, (plan, layer) in enumerate(zip(plans, known.layers, strict=True)):
            split = zip(
                known.candidates(number, plan, 2**self.index_bits),
                plan.split(evidence[layer]),
                plan.split(expected[layer]),
                strict=True,
            )
            for candidates, mine, wanted in split:
                where = slice(done, done + len(mine))
                index[where] = _choice(candidates, mine, wanted.sum(1), chance[where])
                done = where.stop
        return known.mask(plans, index, 2**self.index_bits), self._pack(plans, index)

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        plans, index, index_bits = _unpack(data, context)
        return _Known.of(context).mask(plans, index, 2**index_bits)

    def _plan(self, bits: Vector) -> Plan:
        """Cut a layer into blocks that carry the budget, and those with far more into pieces."""
        length = int(np.abs(LENGTHS * float(bits.mean()) - self.budget).argmin())
        carried = in_blocks(bits, length)
        limit = (self.budget + self.index_bits) / 2
        cuts = np.zeros(len(carried), np.int32)
        over = np.arange(len(carried))
        for cut in range(most_cuts(length)):
            pieces = cut_rows(carried[over], cut).sum(1).reshape(-1, 2**cut)
            over = over[pieces.max(1) > limit]
            cuts[over] = cut + 1
        return Plan(len(bits), length, cuts)

    def _pack(self, plans: list[Plan], index: Integers) -> Coded:
        counts = [len(plan.cuts) for plan in plans]
        cuts = encode(np.concatenate([plan.cuts for plan in plans]), _contexts(counts), MAX_CUTS + 1)
        ans = AnsCoder()
        ans.encode_reverse(index, models.Uniform(2**self.index_bits))
        lengths = bytes(plan.length for plan in plans)
        data = _HEAD.pack(self.index_bits, len(cuts.data)) + lengths + cuts.data + to_bytes(ans)
        return Coded(data, cuts.ideal_bits + self.index_bits * len(index))


def proposals(theta_g: Theta) -> Bytes:
    """Return θ_g in 1/256, from which the candidates are drawn."""
    steps = np.arange(theta_g.denominator + 1, dtype=np.int64)
    table = ((512 * steps + theta_g.denominator) // (2 * theta_g.denominator)).clip(FLOOR, 256 - FLOOR)
    return table.astype(np.uint8).take(theta_g.numerator)


def _evidence(theta: Vector, proposal: Bytes) -> tuple[Vector, Vector, Vector]:
    """Return the log-likelihood ratio e of a one against a zero, θ_k · e and KL(θ_k ‖ θ_g) in bits, of every parameter.

    To e is added a skew of about e²(1 − 2θ_g)/16. Without it, a choice among so few candidates would move θ_g too far
    towards 0 and 1 and not far enough away from them: the best candidate is not as rare as likelihoods have it.
    """
    evidence, expected, bits = np.empty((3, len(theta)), np.float32)
    for part in parts(len(theta)):
        p = theta[part].clip(2.0**-20, 1 - 2.0**-20)
        q = proposal[part] / np.float32(256)
        one, zero = np.log(p / q), np.log((1 - p) / (1 - q))
        ratio = one - zero
        ratio += _SKEW * (1 - 2 * q) * (ratio**2).clip(max=1)
        evidence[part] = np.rint(ratio * UNIT) / UNIT
        expected[part] = theta[part] * evidence[part]
        bits[part] = (p * one + (1 - p) * zero) / np.float32(np.log(2))
    return evidence, expected, bits


@dataclass(frozen=True)
class _Known:
    """What both ends know: the order of the parameters, and in this order where layers are and θ_g in 1/256."""

    context: Context
    order: Integers
    layers: list[slice]
    proposal: Bytes

    @classmethod
    def of(cls, context: Context) -> Self:
        places = order(context)
        return cls(context, places, layers(context), proposals(context.theta)[places])

    def candidates(self, layer: int, plan: Plan, number: int) -> list[Candidates]:
        """Return the candidates of a layer's pieces, by their kinds."""
        split = zip(plan.kinds, plan.split(self.proposal[self.layers[layer]]), strict=True)
        shared = self.context.shared
        return [Candidates(shared.words(f"candidates {layer} {cut}", 1)[0], number, rows) for cut, rows in split]

    def mask(self, plans: list[Plan], index: Integers, number: int) -> Mask:
        """Return the mask that is made of the candidates of these indices."""
        mask = np.empty(len(self.order), np.uint8)
        done = 0
        for layer, plan in enumerate(plans):
            samples = []
            for candidates in self.candidates(layer, plan, number):
                end = done + len(candidates.proposal)
                samples.append(candidates.take(index[done:end]))
                done = end
            mask[self.order[self.layers[layer]]] = plan.join(samples)
        return mask


def _choice(candidates: Candidates, evidence: Vector, wanted: Vector, chance: npt.NDArray[np.uint32]) -> Integers:
    """Draw a candidate of each piece, so that its evidence is ``wanted`` on average."""
    index = np.empty(len(wanted), np.int32)
    for part in parts(len(wanted), candidates.number):
        ratios = np.ascontiguousarray(candidates.sums(part, evidence[part]).T)  # a column is a piece: many sums at once
        index[part] = drawn(ratios, wanted[part], chance[part] / 2.0**32)
    return index


def _contexts(counts: list[int]) -> Bytes:
    """Return the context of each block's cuts: its layer."""
    return np.repeat(np.arange(len(counts)).clip(0, 255).astype(np.uint8), counts)


def _unpack(data: bytes, context: Context) -> tuple[list[Plan], Integers, int]:
    """Return how the layers were cut, the indices and their bits."""
    sizes = context.sizes or (context.size,)
    if len(data) < _HEAD.size + len(sizes):
        raise WireError(f"mask of {len(data)} bytes: too short to hold the block lengths of its layers; it was cut")
    index_bits, cut_bytes = _HEAD.unpack_from(data)
    lengths, coded = data[_HEAD.size : _HEAD.size + len(sizes)], data[_HEAD.size + len(sizes) :]
    if not 0 < index_bits <= MAX_INDEX_BITS or max(lengths) >= len(LENGTHS):
        raise WireError(f"mask with indices of {index_bits} bits, or blocks of an unknown length: it is damaged")
    counts = [-(-size // int(LENGTHS[length])) for size, length in zip(sizes, lengths, strict=True)]
    cuts = np.split(decode(coded[:cut_bytes], _contexts(counts), MAX_CUTS + 1), np.cumsum(counts)[:-1])
    plans = [Plan(*layer) for layer in zip(sizes, lengths, cuts, strict=True)]
    for plan in plans:
        if int(plan.cuts.max(initial=0)) > most_cuts(plan.length):
            raise WireError(f"mask cuts a block of {LENGTHS[plan.length]} parameters too often: it is damaged")
    ans = open_stack(coded[cut_bytes:])
    index: Integers = ans.decode(models.Uniform(2**index_bits), sum(p.count for p in plans)).astype(np.int32)
    close_stack(ans)
    return plans, index, index_bits


class RelativeEntropySettings(Settings):
    """The coder ``relative-entropy``."""

    index_bits: int = setting(8, "bits of an index: 2^index_bits candidates for each piece", ge=1, le=MAX_INDEX_BITS)
    budget: float = setting(4.0, "bits of KL that a block carries on average, below index_bits", gt=0, le=12)

    @model_validator(mode="after")
    def _budget_fits(self) -> Self:
        if self.budget >= self.index_bits:
            raise ValueError(
                f"relative_entropy.budget = {self.budget} should be below relative_entropy.index_bits = "
                f"{self.index_bits}: an index cannot carry more than its bits"
            )
        return self


register(
    CoderSpec(
        name="relative-entropy",
        label="relative entropy",
        about="an index among shared candidates: the fewest bits, and masks a little changed",
        build=lambda settings: RelativeEntropy(settings.index_bits, settings.budget),
        settings=RelativeEntropySettings,
        form=6,
        shared_randomness=True,
    )
)
