from itertools import combinations

import pytest
from sympy import nextprime  # type: ignore[import-untyped]

from fedpm.secure.shamir import PRIME, SECRET, SHARE, join, split


def test_the_field_is_the_least_prime_that_holds_every_secret() -> None:
    assert nextprime(256**SECRET - 1) == PRIME


@pytest.mark.parametrize("secret", [bytes(16), b"\xff" * 16, bytes(range(16))])
def test_any_shares_as_many_as_the_threshold_tell_the_secret(secret: bytes) -> None:
    shares = split(secret, [0, 3, 4, 9, 2**32 - 1], 3)
    assert {len(share) for share in shares.values()} == {SHARE}
    for places in combinations(shares, 3):
        assert join({place: shares[place] for place in places}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    shares = split(bytes(range(16)), range(3), 3)
    two = {place: shares[place] for place in (0, 1)}
    assert join(two) != bytes(range(16))
    for claimed in (bytes(16), b"\x07" * 16):  # for either there is a third share that makes it the secret
        # the parabola through claimed at 0 and both shares at 1 and 2 has at 3 the value s0 - 3 s1 + 3 s2
        numbers = [int.from_bytes(value, "big") for value in (claimed, shares[0], shares[1])]
        third = (numbers[0] - 3 * numbers[1] + 3 * numbers[2]) % PRIME
        assert join({**two, 2: third.to_bytes(SHARE, "big")}) == claimed


def test_shares_are_drawn_anew() -> None:
    assert split(bytes(16), [0], 2) != split(bytes(16), [0], 2)


def test_what_is_no_secret_of_16_bytes_is_none() -> None:
    assert join({0: (PRIME - 1).to_bytes(SHARE, "big")}) is None
