"""What clients send as floats beside masks or changes: coded; what no training gives is refused, the others are one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.wire.floats import COARSE, FINE, decode_floats, encode_floats
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

LARGEST = 1e6
"""A running mean or variance is below this."""
FARTHEST = 3.0
"""How many times as far as the median client one may move trained floats; what goes farther is shortened."""


def write_floats(network: MaskedNetwork, stats: Vector, known: Vector, *, exact: bool = False) -> bytes:
    """Return floats as they travel to one who holds ``known``; nothing if they must go as they are."""
    sizes = _sizes(network)
    if not (sizes and np.isfinite(stats).all()):
        return b""
    fine = [FINE if name in network.trained else COARSE for name in network.stats]
    return encode_floats(stats, known, sizes, fine=fine, least=_least(network), exact=exact)


def read_floats(network: MaskedNetwork, message: Message, known: Vector) -> Vector:
    """Return the floats of a message, sent by or to one who holds ``known``, or raise WireError."""
    if not message.floats:
        return message.stats
    return decode_floats(message.floats, known, _sizes(network), _least(network))


def rounded(network: MaskedNetwork, stats: Vector, known: Vector) -> Vector:
    """Return floats as one who holds ``known`` will read them."""
    message = Message(Kind.UPLOAD, 0, 0, 0, 0, b"", stats, write_floats(network, stats, known))
    return read_floats(network, message, known)


def _sizes(network: MaskedNetwork) -> list[int]:
    return [math.prod(shape) for shape in network.stats.values()]


def _variances(network: MaskedNetwork) -> npt.NDArray[np.bool_]:
    return np.repeat([name.endswith("running_var") for name in network.stats], _sizes(network)).astype(np.bool_)


def _least(network: MaskedNetwork) -> Vector:
    """Return what no float may be below: a variance that was rounded below 0 is 0."""
    return np.where(_variances(network), 0, -np.inf).astype(np.float32)


def check_statistics(network: MaskedNetwork, stats: Vector) -> None:
    """Raise WireError for statistics that no training gives."""
    variances = _variances(network)
    least, largest = float(stats[variances].min(initial=0.0)), float(np.abs(stats).max(initial=0.0))
    if least < 0 or largest >= LARGEST:
        raise WireError(
            f"norm statistics or trained floats hold a variance of {least:g} or a value of {largest:g}: should be at "
            f"least 0 and below {LARGEST:g}; the sender's training diverged, or it lies"
        )


class Floats:
    """What clients sent as floats in a round: the median of norm statistics, the mean of trained parameters.

    A few liars cannot move a median far. What one adds to the mean is bounded by how far the others went.
    """

    def __init__(self, network: MaskedNetwork) -> None:
        sizes = [math.prod(network.stats[name]) for name in network.trained]
        self._statistics = network.stats_size - sum(sizes)
        self._rows: list[Vector] = []

    def add(self, stats: Vector) -> None:
        """Take in those of one client."""
        self._rows.append(stats)

    def aggregate(self, known: Vector) -> Vector:
        """Return one vector of them all, who were sent ``known``; of an even number a median is the mean of two."""
        statistics, trained = np.split(np.stack(self._rows), [self._statistics], axis=1)
        before = known[self._statistics :].astype(np.float64)
        moved = np.linalg.norm(trained - before, axis=1)
        too_far = moved > (bound := FARTHEST * np.median(moved))
        rows = trained.astype(np.float64)
        rows[too_far] = before + (rows[too_far] - before) * (bound / moved[too_far, None])
        return np.concatenate([np.median(statistics, axis=0), rows.mean(0)]).astype(np.float32)
