"""The flip filter, and a second look: who differs far more from the others than they do from one another is left out.

Against θ_g alone, votes on weights that are still undecided cost no flips, and liars can cast all of them against the
others. They do differ from the others then. Of each upload the median counts of the bits in which it differs from each
other one, so that liars who agree among themselves gain nothing while they are fewer than half.

It costs more than the flip filter: all masks of a round in memory, a bit a parameter, and all pairs of them compared
(of 100 clients and 2.3 million parameters: 28 MB, and a second beside the 13 that decoding takes).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.flip_filter import FEWEST, FlipFilter, FlipFilterSettings, moments
from fedpm.registry import AggregatorSpec, register, setting
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta


@dataclass(frozen=True)
class PeerFilter(FlipFilter):
    """Leaves out who has far more extra flips than the median, or differs ``peers`` times as much from the others."""

    peers: float = 2.0

    def screen(self, masks: Iterable[Mask], theta: Theta) -> list[str]:
        """Return for each mask why it is left out, or nothing if it stays."""
        packed: list[npt.NDArray[np.uint8]] = []

        def passing() -> Iterator[Mask]:
            for mask in masks:
                packed.append(np.packbits(mask))
                yield mask

        reasons = super().screen(passing(), theta)
        if len(reasons) < FEWEST:
            return reasons
        expected, variance = moments(theta)
        variance += np.pi / 4 * expected / (len(packed) - 1)  # the others' samples: that of a median is π/2 of a mean's
        others = self._judged(differences(packed) - expected, variance, self.peers, "differences from the others")
        return [flips or differs for flips, differs in zip(reasons, others, strict=True)]


def differences(packed: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float64]:
    """Return of each mask the median over the others of the number of bits in which the two differ."""
    count = len(packed)
    apart = np.zeros((count, count))
    for one in range(count):
        for other in range(one):
            apart[one, other] = apart[other, one] = np.bitwise_count(packed[one] ^ packed[other]).sum(dtype=np.int64)
    rest = apart[~np.eye(count, dtype=np.bool_)].reshape(count, count - 1)
    medians: npt.NDArray[np.float64] = np.median(rest, axis=1)
    return medians


class PeerFilterSettings(FlipFilterSettings):
    """The aggregator ``peer-filter``."""

    peers: float = setting(
        2.0, "the same factor, for the number of bits in which it differs from the other uploads", ge=1
    )


register(
    AggregatorSpec(
        name="peer-filter",
        label="peer filter",
        about="the flip filter, and without uploads that differ far more from the others than these do",
        build=lambda settings: PeerFilter(settings.deviations, settings.factor, settings.peers),
        settings=PeerFilterSettings,
    )
)
