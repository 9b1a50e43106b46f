"""The coder of a final mask, with what a seed and a network tell about it.

A parameter that training hardly moved still follows its initial θ, which the seed gives: that alone saves a few
percent. Other masks have structure by layer, sign, output channel or place in the kernel. All are tried, and the
shortest is taken; plain bits bound it at 1 bit per parameter.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.wire.entropy import decode, encode
from fedpm.wire.masks import Mask

Contexts = npt.NDArray[np.uint32]


def encode_final(mask: Mask, network: MaskedNetwork, seed: int) -> tuple[int, bytes]:
    """Return the number of the shortest scheme and the mask coded with it."""
    coded = {0: np.packbits(mask, bitorder="little").tobytes()}
    for number, contexts in SCHEMES.items():
        coded[number] = encode(mask, contexts(network, seed), 2).data
    return min(coded.items(), key=lambda item: len(item[1]))


def decode_final(scheme: int, data: bytes, network: MaskedNetwork, seed: int) -> Mask:
    """Return the mask, or raise WireError."""
    if scheme in SCHEMES:
        return decode(data, SCHEMES[scheme](network, seed), 2).astype(np.uint8)
    if scheme != 0:
        raise WireError(f"mask coded with scheme {scheme}: this library knows schemes 0 to {max(SCHEMES)}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-network.size // 8) or bits[network.size :].any():
        raise WireError(
            f"mask of {len(data)} bytes: should be {network.size} bits; it is damaged or of another network"
        )
    return bits[: network.size]


def _initial(network: MaskedNetwork, seed: int) -> Contexts:
    """32 levels of the initial θ."""
    return (Streams(seed).uint8("initial scores", network.size) >> 3).astype(np.uint32)


def _layer_sign_initial(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer, sign of the frozen weight, and 16 levels of the initial θ."""
    contexts: Contexts = network.layers().astype(np.uint32) << np.uint32(5)
    contexts |= Streams(seed).bits("weights", network.size).astype(np.uint32) << np.uint32(4)
    contexts |= Streams(seed).uint8("initial scores", network.size) >> 4
    return contexts


def _channel(network: MaskedNetwork, seed: int) -> Contexts:
    """Output channel."""
    channels = [np.arange(part.shape[0], dtype=np.uint32).repeat(part.size // part.shape[0]) for part in network.parts]
    return _side_by_side(channels)


def _kernel(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer and place in the kernel."""
    windows = [(part.size, _window(part.shape)) for part in network.parts]
    return _side_by_side([np.tile(np.arange(window, dtype=np.uint32), size // window) for size, window in windows])


def _window(shape: tuple[int, ...]) -> int:
    """Return the number of places in a convolution's kernel; 1 for other parameters."""
    return int(np.prod(shape[2:]))


def _side_by_side(contexts: list[Contexts]) -> Contexts:
    """Join the contexts of the parts so that no two parts share one."""
    start = np.uint32(0)
    for part in contexts:
        part += start
        start = part[-1:].max(initial=start) + np.uint32(1)
    return np.concatenate(contexts)


SCHEMES: dict[int, Callable[[MaskedNetwork, int], Contexts]] = {
    1: _initial,
    2: _layer_sign_initial,
    3: _channel,
    4: _kernel,
}
