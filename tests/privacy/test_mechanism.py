"""The paper's release against numerical integration and enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from fedpm.errors import ConfigError
from fedpm.privacy.accounting import analytic_sigma, bernoulli_epsilon, gaussian_epsilon, mironov, release_epsilon
from fedpm.privacy.mechanism import (
    classical_sigma,
    clipped_mean,
    correct_by_table,
    correct_exactly,
    pure_epsilon,
    release,
    renyi_bernoulli,
    renyi_binary,
    score_rho,
    sensitivity,
)
from fedpm.rng import Streams

PROBABILITIES = st.floats(0.001, 0.999)
ORDERS = st.floats(1.01, 200)


def integrated_mean(theta: float, c: float, sigma: float) -> float:
    def part(low: float, high: float) -> float:
        found, _ = quad(lambda x: min(max(x, c), 1 - c) * math.exp(-(((x - theta) / sigma) ** 2) / 2), low, high)
        return float(found) / (sigma * math.sqrt(2 * math.pi))

    far = 12 * sigma + 1
    edges = [theta - far, c, 1 - c, theta + far]
    return sum(part(a, b) for a, b in itertools.pairwise(edges))


def test_the_papers_own_figure() -> None:
    """5·r₅(0.2) = 6.6525, + ln(10⁴)/4 = 2.3026 (the paper's "d·r_α(c) = 8.96" holds the conversion already)."""
    rdp = 5 * renyi_binary(5, 0.2)
    assert rdp == pytest.approx(6.6525, abs=1e-4)
    assert mironov(rdp, 5, 1e-4) == pytest.approx(8.955, abs=5e-4)


def test_the_pure_bound_is_lower() -> None:
    assert pure_epsilon(5, 0.2) == pytest.approx(5 * math.log(4)) == pytest.approx(6.931, abs=5e-4)
    assert bernoulli_epsilon(5, 0.2, 1e-4) == pytest.approx(6.931, abs=5e-4)


def test_many_coordinates_profit_from_delta() -> None:
    assert bernoulli_epsilon(1000, 0.45, 1e-5) < 0.6 * pure_epsilon(1000, 0.45)


@pytest.mark.parametrize("alpha", [1.5, 2, 5, 20])
@pytest.mark.parametrize("c", [0.05, 0.2, 0.4])
def test_binary_divergence_is_the_definition(alpha: float, c: float) -> None:
    defined = math.log(c**alpha * (1 - c) ** (1 - alpha) + (1 - c) ** alpha * c ** (1 - alpha)) / (alpha - 1)
    assert renyi_binary(alpha, c) == pytest.approx(defined, abs=1e-9)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("theta", [0.2, 0.33, 0.5, 0.8])
@pytest.mark.parametrize("c", [0.01, 0.2])
def test_clipped_mean_agrees_with_integration(theta: float, c: float, sigma: float) -> None:
    assert float(clipped_mean(theta, c, sigma)) == pytest.approx(integrated_mean(theta, c, sigma), abs=1e-6)


def test_clipped_mean_of_one_half_is_one_half_and_the_papers_last_line_is_not() -> None:
    theta, c, sigma = 0.5, 0.2, 2.0
    assert float(clipped_mean(theta, c, sigma)) == pytest.approx(0.500, abs=1e-9)
    below, above = (0.5 * (1 + math.erf(x / sigma / math.sqrt(2))) for x in (c - theta, 1 - c - theta))
    bracket = math.exp(-2 * (c - theta) - 1) - 1
    last = -sigma * math.exp(-((c - theta) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi) * bracket
    printed = 1 - c + (theta - 1 + c) * above + (c - theta) * below + last
    assert printed == pytest.approx(0.760, abs=1e-3)


def test_releases_have_the_clipped_mean() -> None:
    theta = np.full(400_000, 0.3)
    found = release(theta, 0.2, 0.4, Streams(1)).mean()
    assert found == pytest.approx(float(clipped_mean(0.3, 0.2, 0.4)), abs=4 * 0.5 / math.sqrt(len(theta)))


def test_a_bound_of_a_half_or_more_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"between 0 and 0\.5"):
        release(np.full(3, 0.5), 0.5, 0.0, Streams(0))


@given(st.floats(0.2, 0.8), st.floats(0.05, 3))
def test_both_corrections_undo_the_clipped_mean(theta: float, sigma: float) -> None:
    mean = clipped_mean(np.array([theta]), 0.2, sigma)
    assert correct_exactly(mean, 0.2, sigma)[0] == pytest.approx(theta, abs=1e-9)
    assert abs(correct_by_table(mean, 0.2, sigma, 101)[0] - theta) <= 0.6 / 100


def test_corrections_stay_in_range() -> None:
    means = np.array([0.0, 1.0])
    assert correct_exactly(means, 0.2, 1.0) == pytest.approx([0.2, 0.8])
    assert correct_by_table(means, 0.2, 1.0, 7) == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 9.0])
def test_analytic_noise_costs_exactly_epsilon(epsilon: float) -> None:
    far = sensitivity(5, 0.2)
    assert far == pytest.approx(0.6 * math.sqrt(5))
    assert gaussian_epsilon(analytic_sigma(epsilon, 1e-4, far), 1e-4, far) == pytest.approx(epsilon, abs=1e-6)


def test_classical_noise_is_too_much_below_one_and_too_little_far_above() -> None:
    """The paper uses it up to ε = 9 and beyond, where it no longer gives what it says."""
    assert gaussian_epsilon(classical_sigma(0.9, 1e-4, 1.0), 1e-4, 1.0) < 0.9
    assert gaussian_epsilon(classical_sigma(9.0, 1e-4, 1.0), 1e-4, 1.0) > 9.2


def hockey_stick(d: int, p: float, epsilon: float) -> float:
    """δ of d bits with chance p of a one against chance 1 − p, summed over all 2^d outcomes."""
    far = 0.0
    for bits in itertools.product((0, 1), repeat=d):
        one = math.prod(p if bit else 1 - p for bit in bits)
        other = math.prod(1 - p if bit else p for bit in bits)
        far += max(0.0, one - math.exp(epsilon) * other)
    return far


@pytest.mark.parametrize("sigma", [0.2, 0.65, 2.0])
def test_the_whole_release_costs_what_is_said(sigma: float) -> None:
    p = integrated_mean(0.2, 0.2, sigma)
    said = release_epsilon(5, 0.2, sigma, 1e-4)
    assert hockey_stick(5, p, said) <= 1e-4
    assert hockey_stick(5, p, 0.97 * said) > 1e-4, "and little less would be too little"
    far = sensitivity(5, 0.2)
    assert said < 0.5 * gaussian_epsilon(sigma, 1e-4, far), "far below what the noise alone gives"


@pytest.mark.slow
@given(ORDERS, PROBABILITIES, PROBABILITIES)
def test_a_sample_of_moved_scores_keeps_the_bound(alpha: float, p: float, q: float) -> None:
    moved = abs(math.log(p / (1 - p)) - math.log(q / (1 - q)))
    assert renyi_bernoulli(alpha, p, q) <= alpha * score_rho(moved) * (1 + 1e-9) + 1e-12


def test_the_bound_on_moved_scores_is_tight_for_small_moves() -> None:
    p, q = (1 / (1 + math.exp(-s)) for s in (0.005, -0.005))
    assert renyi_bernoulli(3, p, q) == pytest.approx(3 * score_rho(0.01), rel=1e-4)
