import hashlib
from fractions import Fraction
from math import log

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpm.rng import Streams
from fedpm.wire import theta as module
from fedpm.wire.theta import Theta


@given(st.integers(1, 2**20), st.data())
def test_the_side_of_u_is_exact(denominator: int, data: st.DataObject) -> None:
    numerator = data.draw(st.integers(0, denominator))
    edge = -(-numerator * 2**32 // denominator)
    for u in {0, 2**32 - 1, max(0, edge - 1), min(edge, 2**32 - 1), data.draw(st.integers(0, 2**32 - 1))}:
        belief = Theta(np.array([numerator], np.uint32), denominator)
        side = belief.side_and_distance(np.array([u], np.uint32))[0] >> 6
        assert side == (Fraction(u, 2**32) < Fraction(numerator, denominator))


@given(st.integers(1, 2**17), st.integers(1, 2**17), st.sampled_from([0.25, 0.6, 0.999]), st.data())
def test_theta_ahead_goes_on_as_the_last_round_did(now: int, then: int, share: float, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.tuples(st.integers(0, now), st.integers(0, then)), min_size=1, max_size=9))
    told, before = (np.array(numbers, np.uint32) for numbers in zip(*places, strict=True))
    ahead = Theta(told, now).ahead(Theta(before, then), share)
    ratio = Fraction(round(share * module.FINE), module.FINE)
    for (a, b), found in zip(places, ahead.numerator.tolist(), strict=True):
        exact = Fraction(a, now) + ratio * (Fraction(a, now) - Fraction(b, then))
        assert found == min(module.FINE, max(0, int(exact * module.FINE // 1)))


def test_distance_is_that_of_the_logits() -> None:
    uniform = Streams(0).uint32("u", 20_000)
    belief = Theta(np.arange(20_000, dtype=np.uint32) % 11, 10)
    u, theta = (uniform + 0.5) / 2**32, belief.floats().clip(0.01, 0.99)
    exact = 8 * (np.log(u / (1 - u)) - np.log(theta / (1 - theta)))
    found = (belief.side_and_distance(uniform) & 63).astype(int) - 32
    inside = np.abs(exact) < 30
    assert np.abs(found + 0.5 - exact)[inside].max() < 1.5
    assert set(found[exact > 33]) == {31}
    assert set(found[exact < -33]) == {-32}


def test_the_logit_table_is_the_same_on_every_machine() -> None:
    # floor() is safe: no entry lies nearer than 2e-4 to an integer, and math.log errs by 1e-15.
    exact = [32 * log((i + 0.5) / (4095.5 - i)) for i in range(4096)]
    assert min(abs(value - round(value)) for value in exact) > 2e-4
    assert hashlib.sha256(module._LOGIT.astype("<i2").tobytes()).hexdigest()[:16] == "39c105dc6eac7aae"


def test_levels_tell_counts_apart_while_they_can() -> None:
    levels = Theta(np.arange(11, dtype=np.uint32), 10).level()
    assert len(set(levels.tolist())) == 11
    assert Theta(np.arange(1001, dtype=np.uint32), 1000).level().max() == 63
