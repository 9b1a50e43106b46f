"""Shamir's secret sharing: any ``threshold`` shares tell the secret, fewer tell nothing."""

import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**128 + 51
"""The least prime above 2¹²⁸: every 16-byte secret is an element of the field."""
SECRET = 16
SHARE = 17


def split(secret: bytes, places: Iterable[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each place (from 0 up): a point of a random polynomial that has the secret at its root."""
    polynomial = [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
    return {place: _value(polynomial, place + 1).to_bytes(SHARE, "big") for place in places}


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret from as many shares as the threshold; None if they are not of one secret of 16 bytes."""
    points = {place + 1: int.from_bytes(share, "big") for place, share in shares.items()}
    secret = sum(value * _weight(point, points) for point, value in points.items()) % PRIME
    return secret.to_bytes(SECRET, "big") if secret < 256**SECRET else None


def _value(polynomial: list[int], point: int) -> int:
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value


def _weight(point: int, points: Iterable[int]) -> int:
    """Return Lagrange's weight of a point for the value at 0."""
    above, below = 1, 1
    for other in points:
        if other != point:
            above, below = above * other % PRIME, below * (other - point) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
