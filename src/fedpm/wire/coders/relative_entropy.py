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
from fedpm.rng import Streams, scrambled
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.blocks import LENGTHS, MAX_CUTS, Pieces, Plan, cut_rows, in_blocks, most_cuts, orders
from fedpm.wire.entropy import AnsCoder, Coded, close_stack, decode, encode, models, open_stack, to_bytes
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta, Vector, blocks

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]

MAX_INDEX_BITS = 12
FLOOR = 3  # candidates are drawn from a θ_g of at least 3/256 and at most 253/256, or nothing could be learned there
_EVIDENCE = np.float32(2**8)  # likelihood ratios are multiples of 1/256, so that their sums are exact in float32
_SKEW = np.float32(1 / 16)  # what is added to the evidence of a bit that is rare under θ_g (``_evidence``)
_DIGITS = 10  # of the power of the likelihood ratio, which is below 4 and a multiple of 1/256
_CHUNK = 2**16  # random words drawn at a time
_HEAD = struct.Struct("<BI")  # index bits, bytes of the cuts


@dataclass(frozen=True)
class RelativeEntropy:
    """The coder: indices of ``index_bits`` b for pieces that carry ``budget`` bits of KL, on average over a layer."""

    index_bits: int = 8
    budget: float = 4.0

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask from candidates that both ends know, and send which they were."""
        proposal = proposals(context.theta)
        evidence, bits = _evidence(theta, proposal)
        plans = [self._plan(order, bits) for order in orders(context)]
        mask = np.empty(len(theta), np.uint8)
        chance = private.uint32("index", sum(plan.count for plan in plans))
        index = np.empty(len(chance), np.int32)
        for where, candidates in _candidates(plans, context, proposal, self.index_bits):
            index[where], sample = candidates.choose(evidence, theta * evidence, chance[where])
            candidates.pieces.store(mask, sample)
        return mask, self._pack(plans, index)

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        plans, index, index_bits = _unpack(data, context)
        mask = np.empty(context.size, np.uint8)
        for where, candidates in _candidates(plans, context, proposals(context.theta), index_bits):
            candidates.pieces.store(mask, candidates.take(index[where]))
        return mask

    def _plan(self, order: Integers, bits: Vector) -> Plan:
        """Cut a layer into blocks that carry the budget, and those with far more into pieces."""
        length = int(np.abs(LENGTHS * float(bits[order].mean()) - self.budget).argmin())
        rows = in_blocks(order, length)
        carried = np.append(bits, np.float32(0))[rows]  # a padding, −1, is the zero at the end
        limit = (self.budget + self.index_bits) / 2
        cuts = np.full(len(rows), most_cuts(length), np.int32)
        for cut in reversed(range(most_cuts(length))):
            fits = cut_rows(carried, cut, 0).sum(1).reshape(len(rows), -1).max(1) <= limit
            cuts[fits] = cut
        return Plan(order, length, cuts)

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


def _evidence(theta: Vector, proposal: Bytes) -> tuple[Vector, Vector]:
    """Return the log-likelihood ratio e of a one against a zero, and KL(θ_k ‖ θ_g) in bits, of every parameter.

    To e is added a skew of about e²(1 − 2θ_g)/16. Without it, a choice among so few candidates would move θ_g too far
    towards 0 and 1 and not far enough away from them: the best candidate is not as rare as likelihoods have it.
    """
    evidence, bits = np.empty((2, len(theta)), np.float32)
    for part in blocks(len(theta)):
        p = theta[part].clip(2.0**-20, 1 - 2.0**-20)
        q = proposal[part] / np.float32(256)
        one, zero = np.log(p / q), np.log((1 - p) / (1 - q))
        ratio = one - zero
        ratio += _SKEW * (1 - 2 * q) * (ratio**2).clip(max=1)
        evidence[part] = np.rint(ratio * _EVIDENCE) / _EVIDENCE
        bits[part] = (p * one + (1 - p) * zero) / np.float32(np.log(2))
    return evidence, bits


class _Candidates:
    """The 2^b candidates of pieces of one length: bytes of a counter-based stream, compared with θ_g."""

    def __init__(self, pieces: Pieces, proposal: Bytes, key: np.uint64, index_bits: int) -> None:
        self.pieces = pieces
        self._proposal = proposal
        self._key = key
        self._number = 2**index_bits
        self._words = -(-pieces.rows.shape[1] // 8)

    def take(self, index: Integers) -> Bytes:
        """Return the candidate of that index of each piece."""
        rows = self.pieces.rows
        sample = np.empty(rows.shape, np.uint8)
        for part in _parts(len(rows), self._words):
            sample[part] = self._draw(part, index[part, None])[:, 0]
        return sample

    def choose(self, evidence: Vector, expected: Vector, chance: npt.NDArray[np.uint32]) -> tuple[Integers, Bytes]:
        """Draw a candidate of each piece, so that its evidence is on average what ``expected`` adds up to there."""
        rows = self.pieces.rows
        padded = [np.append(values, np.float32(0)) for values in (evidence, expected)]
        index, sample = np.empty(len(rows), np.int32), np.empty(rows.shape, np.uint8)
        for part in _parts(len(rows), self._words * self._number):
            candidates = self._draw(part, np.arange(self._number)[None])
            mine, wanted = (values[rows[part]] for values in padded)
            ratios = (candidates.astype(np.float32) @ mine[..., None])[..., 0]
            shares = _shares(ratios, wanted.sum(1)).cumsum(1)
            drawn = shares[:, -1:] * (chance[part, None] / 2.0**32)
            index[part] = (shares <= drawn).sum(1)
            sample[part] = candidates[np.arange(len(mine)), index[part]]
        return index, sample

    def _draw(self, part: slice, index: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return candidates of some pieces, of shape (pieces, candidates, parameters)."""
        rows = self.pieces.rows[part]
        piece = np.arange(part.start, part.start + len(rows), dtype=np.uint64)[:, None]
        first = (piece * np.uint64(self._number) + index.astype(np.uint64)) * np.uint64(self._words)
        counters = first[..., None] + np.arange(self._words, dtype=np.uint64)
        draws = scrambled(self._key, counters).astype("<u8", copy=False).view(np.uint8)
        return draws[..., : rows.shape[1]] < self._proposal[rows][:, None]


def _shares(ratios: Vector, wanted: Vector) -> Vector:
    """Return a power of each candidate's likelihood ratio: the highest at which their mean logarithm is below wanted.

    The power is found digit by digit, 2, 1, ½, …: a digit multiplies the weights, and its half is its square root.
    """
    excess = ratios - wanted[:, None]
    weights = np.ones_like(ratios)
    factor = np.exp(2 * (ratios - ratios.max(1, keepdims=True)))
    for _ in range(_DIGITS):
        trial = weights * factor
        short = np.einsum("pc,pc->p", trial, excess) < 0
        np.copyto(weights, trial, where=short[:, None])
        np.sqrt(factor, out=factor)
    return weights


def _candidates(
    plans: list[Plan], context: Context, proposal: Bytes, index_bits: int
) -> list[tuple[slice, _Candidates]]:
    """Return the candidates of all pieces, and where in the upload their indices stand."""
    candidates, done = [], 0
    for layer, plan in enumerate(plans):
        for pieces in plan.pieces:
            key = context.shared.words(f"candidates {layer} {pieces.cut}", 1)[0]
            where = slice(done, done + len(pieces.rows))
            candidates.append((where, _Candidates(pieces, proposal, key, index_bits)))
            done = where.stop
    return candidates


def _parts(count: int, words: int) -> list[slice]:
    """Return the parts of ``count`` pieces of so many random words each in which to work."""
    step = max(1, _CHUNK // words)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _contexts(counts: list[int]) -> Bytes:
    """Return the context of each block's cuts: its layer."""
    return np.repeat(np.arange(len(counts)).clip(0, 255).astype(np.uint8), counts)


def _unpack(data: bytes, context: Context) -> tuple[list[Plan], Integers, int]:
    """Return how the layers were cut, the indices and their bits."""
    layers = orders(context)
    if len(data) < _HEAD.size + len(layers):
        raise WireError(f"mask of {len(data)} bytes: too short to hold the block lengths of its layers; it was cut")
    index_bits, cut_bytes = _HEAD.unpack_from(data)
    lengths, coded = data[_HEAD.size : _HEAD.size + len(layers)], data[_HEAD.size + len(layers) :]
    if not 0 < index_bits <= MAX_INDEX_BITS or max(lengths) >= len(LENGTHS):
        raise WireError(f"mask with indices of {index_bits} bits, or blocks of an unknown length: it is damaged")
    counts = [-(-len(order) // int(LENGTHS[length])) for order, length in zip(layers, lengths, strict=True)]
    cuts = np.split(decode(coded[:cut_bytes], _contexts(counts), MAX_CUTS + 1), np.cumsum(counts)[:-1])
    plans = [Plan(*layer) for layer in zip(layers, lengths, cuts, strict=True)]
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
