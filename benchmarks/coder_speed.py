"""How fast and how small the mask coders are, beside general-purpose compressors."""

import lzma
import tracemalloc
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
from tests.makers import coding_of

from benchmarks.timing import Row, timed
from fedpm.registry import CODERS
from fedpm.rng import Streams
from fedpm.wire.coders import candidates
from fedpm.wire.coders.base import Context, MaskCoder
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta, Vector

CONV6 = 2_262_602
PLAIN = "relative-entropy without numba"


def upload_of(size: int, clients: int = 10) -> tuple[Vector, Context]:
    """Return θ_k and θ_g as in the middle of training: counts from Beta(0.3, 0.3), scores moved by N(0, 0.5²)."""
    rng = np.random.Generator(np.random.Philox(key=1))
    start = Theta(rng.binomial(clients, rng.beta(0.3, 0.3, size)).astype(np.uint32), clients)
    theta = start.floats().clip(0.01, 0.99)
    scores = np.log(theta / (1 - theta)) + rng.normal(0, 0.5, size)
    return (1 / (1 + np.exp(-scores))).astype(np.float32), Context(start, Streams(1).at(1, 1))


def run(size: int = CONV6) -> list[Row]:
    """Measure every coder on one upload of a network as large as CONV-6."""
    theta, context = upload_of(size)
    rows: list[Row] = []
    cases: dict[str, Callable[[], object]] = {}
    for name in (spec.name for spec in CODERS if not spec.secure):  # benchmarks/secure_sum.py has the others
        coder = coding_of(name).coder
        _, coded = coder.encode(theta, context, context.shared)
        cases[f"{name} encode"] = partial(_encode, coder, theta, context)
        cases[f"{name} decode"] = partial(coder.decode, coded.data, context)
        rows.append(
            {
                "coder": name,
                "bpp": 8 * len(coded.data) / size,
                "size / ideal": 8 * len(coded.data) / coded.ideal_bits,
                "peak bytes / d": _peak(cases[f"{name} encode"], cases[f"{name} decode"]) / size,
            }
        )
    mask, _ = coding_of("frequency").coder.encode(theta, context, context.shared)
    for name, compress, decompress in _compressors():
        packed = compress(_packed(mask))
        cases[f"{name} encode"] = partial(compress, _packed(mask))
        cases[f"{name} decode"] = partial(decompress, packed)
        rows.append({"coder": name, "bpp": 8 * len(packed) / size})
    if candidates._compiled() is not None:
        cases[f"{PLAIN} encode"] = partial(_without_numba, cases["relative-entropy encode"])
        rows.append({"coder": PLAIN})
    seconds = timed(cases, cpu=True)
    for row in rows:
        for way in ("encode", "decode"):
            taken = seconds.get(f"{row['coder']} {way}")
            row[f"{way} M/s"] = size / taken / 1e6 if taken else ""
    return rows


def _encode(coder: MaskCoder, theta: Vector, context: Context) -> Coded:
    return coder.encode(theta, context, context.shared)[1]


def _without_numba(case: Callable[[], object]) -> object:
    with patch.object(candidates, "_compiled", lambda: None):
        return case()


def _packed(mask: Mask) -> bytes:
    return np.packbits(mask).tobytes()


def _peak(*cases: Callable[[], object]) -> int:
    """Return the most memory that a case has allocated at once."""
    tracemalloc.start()
    for case in cases:
        case()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _compressors() -> list[tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    """Return general-purpose compressors of packed bits: xz, and zstd where it is installed."""
    xz = ("xz -9", partial(lzma.compress, preset=9), lzma.decompress)
    try:
        import zstandard
    except ImportError:
        return [xz]
    return [xz, ("zstd -19", zstandard.ZstdCompressor(level=19).compress, zstandard.ZstdDecompressor().decompress)]
