"""What clients that lie send in place of a mask, or of a change of weights, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.peer_filter import PeerFilter
from fedpm.rng import Streams
from fedpm.wire.theta import Vector

STRENGTH = 5.0
"""How many times as far as the honest clients ``opposite`` goes."""
NEARLY = 0.95
"""How near ``hidden`` and ``wary`` come to the limits of the filters."""


@dataclass(frozen=True)
class View:
    """What a liar knows: θ_g, what the honest clients of this round sent, what it would have sent itself."""

    theta: Vector
    honest: Sequence[npt.NDArray[Any]]
    liars: int
    train: Callable[[], npt.NDArray[Any]]
    rng: Streams

    @cached_property
    def mean(self) -> Vector:
        """The mean of what the honest clients sent."""
        total = np.zeros(len(self.theta), np.float32)
        for mask in self.honest:
            total += mask
        return total / np.float32(max(1, len(self.honest)))


Attack = Callable[[View], Vector]
"""Returns the probabilities of ones in the liar's mask; 0 and 1 where it wants just that bit."""


def inverted(view: View) -> Vector:
    """Send the opposite of the mask that honest training gave."""
    return (1 - view.train()).astype(np.float32)


def ones(view: View) -> Vector:
    """Keep every weight."""
    return np.ones_like(view.theta)


def zeros(view: View) -> Vector:
    """Keep no weight."""
    return np.zeros_like(view.theta)


def random(view: View) -> Vector:
    """Toss a fair coin for every weight."""
    return (view.rng.uint8("lie", len(view.theta)) & 1).astype(np.float32)


def contrary(view: View) -> Vector:
    """Send the opposite of the global mask, 1[θ_g ≤ ½]: what undoes most of what has been learned."""
    return (view.theta <= 0.5).astype(np.float32)


def opposite(view: View, strength: float = STRENGTH) -> Vector:
    """Move away from θ_g opposite to where the honest clients moved, ``strength`` times as far."""
    return (view.theta - np.float32(strength) * (view.mean - view.theta)).clip(0, 1)


def mirrored(view: View) -> Vector:
    """Move just as far as the honest clients, and opposite: no further from θ_g than they are."""
    return opposite(view, 1.0)


def votes(view: View) -> Vector:
    """Vote against the majority where the liars can turn it, and as honest clients do elsewhere.

    This is VEM, the strongest attack published against votes (it manipulates the edges whose rank is near the bound of
    what is kept), as far as it applies to masks: there are no ranks here, and an edge is vulnerable where the margin
    of the honest votes is not above the number of liars.
    """
    margin = np.rint(np.abs(2 * view.mean - 1) * len(view.honest))  # votes are whole
    against = (view.mean <= 0.5).astype(np.float32)
    return np.where(margin <= view.liars, against, view.mean).astype(np.float32)


def hidden(view: View) -> Vector:
    """Vote against the majority on as many weights as the flip filter lets pass, the least suspicious first."""
    return _unnoticed(view, [(PeerFilter.factor, view.theta, view.theta)])


def wary(view: View) -> Vector:
    """Do the same with as many as the peer filter lets pass too."""
    count = len(view.honest)
    others = (view.mean * count - view.honest[0]) / np.float32(max(1, count - 1))  # of whom an honest client is judged
    return _unnoticed(view, [(PeerFilter.factor, view.theta, view.theta), (PeerFilter.peers, view.mean, others)])


def _unnoticed(view: View, judged: Sequence[tuple[float, Vector, Vector]]) -> Vector:
    """Turn votes until a distance to the first vector comes near so many times that of honest clients to the second."""
    vote = (view.mean > 0.5).astype(np.float32)
    expected = float((2 * view.theta * (1 - view.theta)).sum(dtype=np.float64))
    costs = [np.abs(1 - vote - centre) - np.abs(vote - centre) for _, centre, _ in judged]  # of a turned vote
    order = np.argsort(np.sum(costs, axis=0), kind="stable")
    most = len(order)
    for cost, (factor, centre, theirs) in zip(costs, judged, strict=True):
        masks = view.honest if theirs is view.theta else view.honest[:1]
        honest = float(np.median([np.abs(mask - theirs).sum(dtype=np.float64) for mask in masks]))
        limit = expected + NEARLY * factor * (honest - expected)
        distance = float(np.abs(vote - centre).sum(dtype=np.float64)) + np.cumsum(cost[order], dtype=np.float64)
        most = min(most, int(np.argmax(distance > limit)) if (distance > limit).any() else most)
    vote[order[:most]] = 1 - vote[order[:most]]
    return vote


ATTACKS: dict[str, Attack] = {
    "inverted": inverted,
    "ones": ones,
    "zeros": zeros,
    "random": random,
    "contrary": contrary,
    "opposite": opposite,
    "mirrored": mirrored,
    "votes": votes,
    "hidden": hidden,
    "wary": wary,
}
"""Lies about a mask, by name."""
LABELS = "labels"
"""No lie about a mask: these clients train honestly, on labels y that were turned into 9 − y."""


def noise(view: View) -> Vector:
    """Send noise as large as the honest mean change."""
    draws = view.rng.uint32("lie", 2 * len(view.theta)).astype(np.float64) / 2**32
    normal = np.sqrt(-2 * np.log(1 - draws[::2])) * np.cos(2 * np.pi * draws[1::2])
    sent: Vector = (normal * np.sqrt(np.mean(view.mean**2))).astype(np.float32)
    return sent


CHANGES: dict[str, Attack] = {
    "inverted": lambda view: -view.train(),
    "random": noise,
    "opposite": lambda view: -np.float32(STRENGTH) * view.mean,
    "mirrored": lambda view: -view.mean,
}
"""The same about a change of weights, as far as there is such a lie."""
