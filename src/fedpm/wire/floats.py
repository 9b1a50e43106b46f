"""Floats that both ends nearly know, as differences on a grid, entropy-coded.

    data = encode_floats(values, known, sizes)
    values = decode_floats(data, known, sizes)

Each tensor has a grid of its own, a power of two below the root mean square of its differences. Of a
difference its sign and number of binary digits are coded, in contexts of the tensor; the digits after the first follow
as they are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.wire.entropy import decode, encode
from fedpm.wire.theta import Vector

FINE = 5
"""A grid of trained parameters is 2^(⌊log2 rms⌋ + 1 − FINE): between 1/32 and 1/16 of the rms."""
COARSE = 3
"""And one of norm statistics, whose changes are mostly chance: between an eighth and a quarter of it."""
DIGITS = 30
"""The most binary digits of a difference on the grid."""
LOWEST, HIGHEST = -127, 127
"""Exponents of grids."""
Exponents = npt.NDArray[np.int8]


def encode_floats(
    values: Vector,
    known: Vector,
    sizes: Sequence[int],
    *,
    fine: Sequence[int] | int = FINE,
    least: Vector | None = None,
    exact: bool = False,
) -> bytes:
    """Code finite floats for a receiver that holds ``known``; sizes are those of the tensors, one after another.

    ``fine`` says how fine the grids are, one for all tensors or one each.

    Decoded, they are off by half a step of the grid at most. If ``exact``, they are what ``decode_floats`` gave with
    the same ``known`` before, and come out the same; returns nothing where they cannot.
    """
    differences = values.astype(np.float64) - known
    exponents = _grids(differences, sizes, np.asarray(fine))
    for _ in range(2 if exact else 1):
        data = _encoded(differences, exponents, sizes)
        if not exact or (data and np.array_equal(decode_floats(data, known, sizes, least), values)):
            return data
        exponents = (exponents - 1).clip(LOWEST, HIGHEST).astype(np.int8)  # rounding made the rms seem larger
    return b""


def decode_floats(data: bytes, known: Vector, sizes: Sequence[int], least: Vector | None = None) -> Vector:
    """Return the floats, none below its ``least``, or raise WireError."""
    if len(data) < len(sizes) + 4:
        raise WireError(f"coded floats of {len(data)} bytes: too short for {len(sizes)} tensors; they were cut")
    exponents, rest = np.frombuffer(data, np.int8, len(sizes)), data[len(sizes) :]
    length = int.from_bytes(rest[:4], "little")
    if length > len(rest) - 4:
        raise WireError(f"coded floats claim {length} bytes of {len(rest) - 4}: they were cut")
    symbols = decode(rest[4 : 4 + length], _contexts(sizes), 2 * DIGITS + 1)
    lengths = np.abs(symbols - DIGITS)
    integers = _digits(rest[4 + length :], lengths) * np.sign(symbols - DIGITS)
    steps = np.repeat(np.ldexp(1.0, exponents.astype(np.int32)), sizes)
    with np.errstate(over="ignore"):
        values: Vector = (known + integers * steps).astype(np.float32)
    if not np.isfinite(values).all():
        raise WireError("coded floats are beyond all bounds: they are damaged, or the sender's training diverged")
    return values if least is None else np.maximum(values, least)


def _grids(differences: npt.NDArray[np.float64], sizes: Sequence[int], fine: npt.NDArray[np.integer[Any]]) -> Exponents:
    """Return the exponent of each tensor's grid; the largest difference still has to have its digits."""
    parts = np.split(differences, np.cumsum(sizes)[:-1]) if len(sizes) else []
    rms = np.array([np.sqrt(np.mean(part**2)) if len(part) else 0.0 for part in parts])
    largest = np.array([np.abs(part).max(initial=0.0) for part in parts])
    exponents = np.maximum(np.frexp(rms)[1] - fine, np.frexp(largest)[1] - DIGITS)
    clipped: Exponents = exponents.clip(LOWEST, HIGHEST).astype(np.int8)
    return clipped


def _encoded(differences: npt.NDArray[np.float64], exponents: Exponents, sizes: Sequence[int]) -> bytes:
    steps = np.repeat(np.ldexp(1.0, exponents.astype(np.int32)), sizes)
    integers = np.rint(differences / steps)
    if np.abs(integers).max(initial=0.0) >= 2**DIGITS:
        return b""
    lengths = np.frexp(np.abs(integers))[1].astype(np.int32)
    coded = encode(np.sign(integers).astype(np.int32) * lengths + DIGITS, _contexts(sizes), 2 * DIGITS + 1).data
    whole = np.abs(integers).astype(np.uint32)
    places = np.arange(DIGITS - 1, dtype=np.uint32)
    bits = (whole[:, None] >> places) & 1
    kept = bits[places < (lengths - 1)[:, None]].astype(np.uint8)
    return (
        exponents.tobytes() + len(coded).to_bytes(4, "little") + coded + np.packbits(kept, bitorder="little").tobytes()
    )


def _digits(data: bytes, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return integers of so many binary digits, whose first is 1, from the digits after it, lowest first."""
    places = np.arange(DIGITS - 1)
    there = places < (lengths - 1)[:, None]
    count = int(there.sum())
    if len(data) != -(-count // 8):
        raise WireError(f"coded floats have {len(data)} bytes of digits instead of {-(-count // 8)}: they are damaged")
    bits = np.zeros(there.shape, np.int64)
    bits[there] = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:count]
    first = np.where(lengths > 0, np.left_shift(1, np.maximum(lengths - 1, 0).astype(np.int64)), 0)
    integers: npt.NDArray[np.float64] = ((bits << places).sum(1) + first).astype(np.float64)
    return integers


def _contexts(sizes: Sequence[int]) -> npt.NDArray[np.uint32]:
    return np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
