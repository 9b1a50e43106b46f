"""What a sum of samples tells of one of them: the statements of docs/privacy.md about secure sums."""

import numpy as np
import numpy.typing as npt
import pytest

Law = npt.NDArray[np.float64]


def law_of_sum(chances: list[float]) -> Law:
    """Return the distribution of a sum of independent bits."""
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return law


def chi_square(one: Law, other: Law) -> float:
    """Return the χ² divergence, over outcomes that can happen."""
    possible = other > 0
    assert not one[~possible].any()
    return float((((one - other) ** 2)[possible] / other[possible]).sum())


@pytest.mark.parametrize("clients", [1, 2, 10, 100])
@pytest.mark.parametrize(("theta", "moved"), [(0.5, 0.6), (0.1, 0.05), (0.01, 0.02)])
def test_among_samples_of_the_broadcast_a_move_tells_less_by_their_number(
    clients: int, theta: float, moved: float
) -> None:
    others = [theta] * (clients - 1)
    found = chi_square(law_of_sum([moved, *others]), law_of_sum([theta, *others]))
    assert found == pytest.approx((moved - theta) ** 2 / (theta * (1 - theta)) / clients)


def test_others_that_are_certain_hide_nothing() -> None:
    alone = chi_square(law_of_sum([0.6]), law_of_sum([0.5]))
    certain = [0.0, 1.0, 1.0]
    assert chi_square(law_of_sum([0.6, *certain]), law_of_sum([0.5, *certain])) == pytest.approx(alone)
