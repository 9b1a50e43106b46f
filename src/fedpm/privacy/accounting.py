"""What privacy costs: ε for a δ, through the accountants of dp-accounting."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedpm.errors import ConfigError, install
from fedpm.privacy.mechanism import clipped_mean, pure_epsilon, renyi_binary, score_rho

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""Orders α of Rényi divergences among which the best is taken."""


def _dp() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError(f"accounting for privacy needs the package dp-accounting: {install('privacy')}") from None
    return dp_accounting


# -- the paper's release (Appendix C) -----------------------------------------------------------------------


def mironov(rdp: float, alpha: float, delta: float) -> float:
    """Return the paper's conversion of (α, ε)-RDP to (ε, δ): ε + ln(1/δ)/(α − 1)."""
    return rdp + math.log(1 / delta) / (alpha - 1)


def analytic_sigma(epsilon: float, delta: float, delta_2: float) -> float:
    """Return the least noise of a Gaussian mechanism, for every ε (Balle & Wang 2018)."""
    return float(_dp().get_sigma_gaussian(epsilon, delta)) * delta_2


def gaussian_epsilon(sigma: float, delta: float, delta_2: float) -> float:
    """Return what a Gaussian mechanism really costs."""
    return float(_dp().get_epsilon_gaussian(sigma / delta_2, delta))


def bernoulli_epsilon(d: int, c: float, delta: float) -> float:
    """Return what a sample of Bern(θ) costs, θ in [c, 1−c]^d: the least of d·r_α(c), converted, and the pure bound."""
    rdp = [d * renyi_binary(alpha, c) for alpha in ORDERS]
    epsilon, _ = _dp().rdp.compute_epsilon(ORDERS, rdp, delta)
    return min(float(epsilon), pure_epsilon(d, c))


def amplified_epsilon(epsilon: float, d: int, c: float, delta: float) -> float:
    """Return ε_amp = min(ε, d·r_α(c)) for noise that alone gives ε."""
    return min(epsilon, bernoulli_epsilon(d, c, delta))


def release_epsilon(d: int, c: float, sigma: float, delta: float) -> float:
    """Return what the whole release costs: noise, clipping and sampling together.

    A released bit is one with probability g(θ), the clipped mean, and g maps [c, 1−c] to [g(c), 1 − g(c)]. So the
    release is a sample of Bern(θ′) with θ′ in that narrower range, whatever the noise alone would guarantee.
    """
    return bernoulli_epsilon(d, float(clipped_mean(c, c, sigma)), delta)


# -- training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one round costs a client that takes part in it, and how that adds up.

    Args:
        unit: ``"example"`` (add or remove one example of one client) or ``"client"`` (a client's data, or none).
        delta: δ of the guarantee.
        steps: noisy steps of a round (example).
        noise: the noise multiplier of a step (example).
        sampling_rate: the chance of an example to be in a step (example).
        clip: the ℓ2 bound of a client's move of the scores (client).
    """

    unit: str
    delta: float
    steps: int = 0
    noise: float = 0.0
    sampling_rate: float = 1.0
    clip: float = 0.0

    def epsilon(self, rounds: int) -> float:
        """Return ε of a client that took part in so many rounds."""
        return 0.0 if rounds == 0 else _epsilon(self, rounds)

    def rounds_within(self, epsilon: float, most: int) -> int:
        """Return in how many rounds, of ``most``, a client can take part for ``epsilon``."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle - 1)
        return low


@lru_cache(maxsize=4096)
def _epsilon(cost: Cost, rounds: int) -> float:
    dp = _dp()
    accountant: Any
    if cost.unit == "client":
        accountant = dp.rdp.RdpAccountant(ORDERS)
        accountant.compose(dp.ZCDpEvent(score_rho(cost.clip)), rounds)
    else:
        accountant = _pld()
        accountant.compose(_step(cost.noise, cost.sampling_rate), rounds * cost.steps)
    return float(accountant.get_epsilon(cost.delta))


def _pld() -> Any:
    """Return an accountant of privacy loss distributions: an upper bound, some 8 % below that of Rényi divergences.

    Losses are rounded up to multiples of 10⁻³: ten times as fast as the default 10⁻⁴, and ε rises in the fourth digit.
    """
    return _dp().pld.PLDAccountant(value_discretization_interval=1e-3)


def _step(noise: float, sampling_rate: float) -> Any:
    """Return the event of one noisy step."""
    dp = _dp()
    gaussian = dp.GaussianDpEvent(noise)
    return gaussian if sampling_rate == 1 else dp.PoissonSampledDpEvent(sampling_rate, gaussian)


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float, steps: int, sampling_rate: float) -> float:
    """Return the least noise multiplier, rounded up to 4 digits, with which so many steps cost at most ε."""
    dp = _dp()
    found: float = dp.calibrate_dp_mechanism(
        _pld,
        lambda noise: dp.SelfComposedDpEvent(_step(noise, sampling_rate), steps),
        epsilon,
        delta,
        dp.LowerEndpointAndGuess(0.0, 2.0),
        tol=1e-4,
    )
    return math.ceil(found * 1e4) / 1e4


@lru_cache(maxsize=64)
def clip_for(epsilon: float, delta: float, rounds: int) -> float:
    """Return the largest clip of a client's move with which so many rounds cost at most ε."""
    dp = _dp()
    found: float = dp.calibrate_dp_mechanism(
        lambda: dp.rdp.RdpAccountant(ORDERS), lambda rho: dp.ZCDpEvent(rho), epsilon, delta, tol=1e-9
    )
    clip = math.floor(math.sqrt(8 * found / rounds) * 1e6) / 1e6
    if clip == 0:
        raise ConfigError(f"privacy.epsilon = {epsilon}: too small for any move of a client in {rounds} rounds")
    return clip
