"""The mean estimation experiment, and the orders of its errors."""

import numpy as np
import pytest

from fedpm.errors import ConfigError
from fedpm.privacy.estimation import Estimation
from fedpm.privacy.figure import draw, picture

MANY = Estimation(clients=1000, repetitions=40)


@pytest.mark.slow
def test_errors_without_noise_are_those_of_sampling() -> None:
    """E‖m̄ − θ̄‖² = Σ θ(1 − θ)/N, and E[θ(1 − θ)] = 0.22 for θ uniform on [0.2, 0.8]."""
    (row,) = Estimation(repetitions=400).curve([5.0])
    assert row["error_no_noise"] == pytest.approx(5 * 0.22 / 100, rel=0.1)


def test_amplification_lowers_epsilon_and_changes_no_error() -> None:
    weak, strong = Estimation(repetitions=5).curve([4.0, 20.0])
    assert weak["epsilon_paper"] == weak["epsilon_amplified"] == 4.0
    assert strong["epsilon_paper"] == pytest.approx(8.955, abs=1e-3)
    assert strong["epsilon_amplified"] == pytest.approx(6.931, abs=1e-3)
    assert strong["epsilon_release"] < weak["epsilon_amplified"], "the bits that leave tell less than either bound"
    assert strong["error_noise"] < weak["error_noise"]


def test_bias_correction_lowers_the_error_where_the_paper_says() -> None:
    for row in MANY.curve([3.0, 6.0, 8.0, 10.0]):
        assert row["error_no_noise"] < row["error_exact"] < 0.6 * row["error_noise"]
        assert row["error_table"] == pytest.approx(row["error_exact"], rel=0.02)


def test_bias_correction_hurts_where_noise_leaves_no_signal() -> None:
    (row,) = MANY.curve([0.5])
    assert row["error_exact"] > row["error_noise"]


def test_clients_with_masks_of_their_own_have_no_bias_to_correct() -> None:
    (row,) = Estimation(spread=1.0, repetitions=40).curve([6.0])
    assert row["error_noise"] < 1.5 * row["error_no_noise"]
    assert row["error_exact"] > 5 * row["error_noise"]


def test_a_seed_repeats() -> None:
    assert Estimation(repetitions=3).curve([2.0]) == Estimation(repetitions=3).curve([2.0])
    assert Estimation(repetitions=3, seed=1).curve([2.0]) != Estimation(repetitions=3).curve([2.0])


def test_all_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        Estimation(clients=1, c=0.5, noise="laplace")
    assert len(str(error.value).splitlines()) == 3
    with pytest.raises(ConfigError, match="epsilon = -1"):
        Estimation().curve([-1.0])


@pytest.mark.slow
def test_the_picture_shows_every_curve() -> None:
    rows = Estimation(repetitions=3).curve([1.0, 10.0])
    figure = draw(rows, "a title")
    drawn = {tuple(np.asarray(line.get_xdata())) for axes in figure.axes for line in axes.get_lines()}
    for name in ("epsilon", "epsilon_paper", "epsilon_amplified", "epsilon_release"):
        assert tuple(row[name] for row in rows) in drawn
    assert picture(figure, "png").startswith(b"\x89PNG")
    assert b"<svg" in picture(figure, "svg")
