"""The posterior's resets, and how many masks it has room for."""

import pytest

from fedpm.aggregation.posterior import MAX_TOTAL, resets
from fedpm.errors import ConfigError


@pytest.mark.parametrize(
    ("clients", "per_round", "gamma"),
    [(10, 10, 1), (10, 5, 2), (10, 2, 5), (10, 1, 10), (10**6, 100, MAX_TOTAL // 100)],
)
def test_auto_is_one_over_rho_as_far_as_there_is_room(clients: int, per_round: int, gamma: int) -> None:
    assert resets("auto", clients, per_round) == gamma
    assert per_round * gamma <= MAX_TOTAL


def test_what_is_given_stays_and_is_refused_where_it_is_too_much() -> None:
    assert resets(7, 10, 10) == 7
    with pytest.raises(ConfigError, match="at most 65536 masks; sample fewer clients, or reset more often"):
        resets(700, 1000, 100)
    with pytest.raises(ConfigError, match="70000 × 1"):
        resets("auto", 70_000, 70_000)
