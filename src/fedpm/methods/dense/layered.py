"""What the quantisers share that treat every layer by itself: scales of layers, symbols in contexts of layers."""

from __future__ import annotations

import struct
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.methods.dense.quantiser import Quantised
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

Symbols = npt.NDArray[np.int32]
_SETTING = struct.Struct("<f")


def sizes(network: MaskedNetwork) -> npt.NDArray[np.int64]:
    """Return the number of weights of every layer (weights and biases count as two layers)."""
    return np.array([part.size for part in network.parts])


def per_weight(values: npt.NDArray[np.float32], network: MaskedNetwork) -> Vector:
    """Return a layer's value for each of its weights."""
    return np.repeat(values, sizes(network))


def encode_symbols(
    scales: npt.NDArray[np.float32], symbols: Symbols, network: MaskedNetwork, alphabet: int
) -> Quantised:
    """Code float32 scales and then symbols, in contexts of their layer."""
    order = mixed(network.size)
    coded = encode(symbols[order], network.layers()[order], alphabet)
    data = scales.astype("<f4").tobytes() + coded.data
    return Quantised(Coded(data, coded.ideal_bits + 32 * len(scales)), symbol_entropy(symbols))


def decode_symbols(data: bytes, network: MaskedNetwork, alphabet: int) -> Symbols:
    """Return the symbols, or raise WireError."""
    order = mixed(network.size)
    symbols = np.empty(network.size, np.int32)
    symbols[order] = decode(data, network.layers()[order], alphabet)
    return symbols


def mixed(size: int) -> npt.NDArray[np.int64]:
    """Return an order that jumps about: i · stride mod size, with the first coprime stride beyond 0.618 · size.

    The coder learns from what it has seen; in this order every stretch is a sample of the whole layer, while units
    that are dead, say, lie side by side.
    """
    stride = size * 618 // 1000 + 1
    while gcd(stride, size) != 1:
        stride += 1
    order: npt.NDArray[np.int64] = np.arange(size, dtype=np.int64) * stride % size
    return order


def read_scales(data: bytes, count: int) -> tuple[npt.NDArray[np.float32], bytes]:
    """Return finite, non-negative scales and the bytes after them, or raise WireError."""
    if len(data) < 4 * count:
        raise WireError(f"upload of {len(data)} bytes: too short to hold {count} scales; it was cut")
    scales = np.frombuffer(data, "<f4", count).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise WireError("upload holds a scale that is negative or not finite: it is damaged")
    return scales, data[4 * count :]


def write_setting(value: float) -> bytes:
    """Return the setting that both ends must share, to stand before what depends on it."""
    return _SETTING.pack(value)


def read_setting(data: bytes, value: float, name: str) -> bytes:
    """Return the bytes after a setting, or raise WireError if it is not ``value``."""
    if len(data) < _SETTING.size:
        raise WireError(f"upload of {len(data)} bytes: too short to hold {name}; it was cut")
    if data[: _SETTING.size] != _SETTING.pack(value):
        (found,) = _SETTING.unpack_from(data)
        raise WireError(f"upload made with {name} = {found:g} instead of {value:g}: give all sides the same settings")
    return data[_SETTING.size :]


def symbol_entropy(symbols: npt.NDArray[np.integer]) -> float:
    """Return the entropy of the symbols' frequencies in bits a symbol: the paper's bitrate."""
    counts = np.unique(symbols, return_counts=True)[1]
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log2(frequencies)).sum())
