"""The coder of a final mask, with what a seed and a network tell about it.

A parameter that training hardly moved still follows its initial θ, which the seed gives: that alone saves a few
percent. Other masks have structure by layer, sign, output channel or place in the kernel, those over given weights by
the size of these. All are tried, and the shortest is taken; plain bits bound it at 1 bit per parameter. A mask of a
large network is never coded in next to nothing, so that who reads a file can tell from its length how much memory it
may take; a mask over given weights is, since their reader has them in memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.model.masking import MaskedNetwork
from fedpm.model.start import TOTAL, starting_theta
from fedpm.rng import Streams
from fedpm.wire.entropy import decode, encode
from fedpm.wire.masks import Mask, Signs

Contexts = npt.NDArray[np.uint32]

PER_BYTE = 128
"""Parameters for which a coded mask has a byte at least, in networks of more than ``SMALL`` parameters."""
SMALL = 2**20


def fewest_bytes(parameters: int) -> int:
    """Return how long a coded mask is at least."""
    return 0 if parameters <= SMALL else -(-parameters // PER_BYTE)


def encode_final(mask: npt.NDArray[Any], network: MaskedNetwork, seed: int) -> tuple[int, bytes]:
    """Return the number of the shortest scheme that is long enough, and the mask coded with it."""
    if mask.dtype == np.int8:
        return SIGNS, encode(mask + 1, _magnitude(network, seed), 3).data
    coded = {0: np.packbits(mask, bitorder="little").tobytes()}
    for number in OF_GIVEN if network.given is not None else OF_RANDOM:
        coded[number] = encode(mask, SCHEMES[number](network, seed), 2).data
    fewest = 0 if network.given is not None else fewest_bytes(network.size)
    enough = [item for item in coded.items() if len(item[1]) >= fewest]
    return min(enough, key=lambda item: len(item[1]))


def decode_final(scheme: int, data: bytes, network: MaskedNetwork, seed: int) -> Mask | Signs:
    """Return the mask, or raise WireError."""
    if scheme == SIGNS:
        return (decode(data, _magnitude(network, seed), 3) - 1).astype(np.int8)
    if scheme in (OF_GIVEN if network.given is not None else OF_RANDOM):
        return decode(data, SCHEMES[scheme](network, seed), 2).astype(np.uint8)
    if scheme != 0:
        raise WireError(
            f"mask coded with scheme {scheme}: this library knows 0 to {max(SCHEMES)}, of random weights not "
            f"{max(OF_GIVEN)}, and of given ones not 1 and 2"
        )
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-network.size // 8) or bits[network.size :].any():
        raise WireError(
            f"mask of {len(data)} bytes: should be {network.size} bits; it is damaged or of another network"
        )
    return bits[: network.size]


def _initial(network: MaskedNetwork, seed: int) -> Contexts:
    """32 levels of the initial θ."""
    return _start(network, seed) >> np.uint32(3)


def _layer_sign_initial(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer, sign of the frozen weight, and 16 levels of the initial θ."""
    contexts: Contexts = network.layers().astype(np.uint32) << np.uint32(5)
    contexts |= Streams(seed).bits("weights", network.size).astype(np.uint32) << np.uint32(4)
    contexts |= _start(network, seed) >> np.uint32(4)
    return contexts


def _start(network: MaskedNetwork, seed: int) -> Contexts:
    """Return what tells the initial θ, from 0 to 255: the draw behind it, or where that alone does not, θ itself."""
    if network.init == "zero-sum":
        return starting_theta(network, seed) // np.uint32(TOTAL // 255)
    return Streams(seed).uint8("initial scores", network.size).astype(np.uint32)


def _channel(network: MaskedNetwork, seed: int) -> Contexts:
    """Output channel."""
    channels = [np.arange(part.shape[0], dtype=np.uint32).repeat(part.size // part.shape[0]) for part in network.parts]
    return _side_by_side(channels)


def _kernel(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer and place in the kernel."""
    windows = [(part.size, _window(part.shape)) for part in network.parts]
    return _side_by_side([np.tile(np.arange(window, dtype=np.uint32), size // window) for size, window in windows])


def _size_of_given(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer, sign of the given weight, and how many times it would have to be doubled to reach its layer's largest."""
    given = network.weights(seed).numpy()
    contexts: Contexts = network.layers().astype(np.uint32) << np.uint32(4)
    contexts |= (given < 0).astype(np.uint32) << np.uint32(3)
    exponents = np.frexp(given)[1]
    largest = np.concatenate([np.full(len(p), p.max()) for p in network.pieces(exponents)])
    contexts |= (largest - exponents).clip(0, 7).astype(np.uint32)
    return contexts


def _magnitude(network: MaskedNetwork, seed: int) -> Contexts:
    """Layer, and 64 levels of the magnitude from which a weight would start dense training."""
    levels = Streams(seed).words("dense weights", -(-network.size // 4)).astype("<u8", copy=False).view("<u2")
    far = np.abs(levels[: network.size].astype(np.int32) * 2 - 0xFFFF).astype(np.uint32) >> np.uint32(10)
    contexts: Contexts = network.layers().astype(np.uint32) << np.uint32(6)
    return contexts | far


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


SIGNS = 5
"""The scheme of signs over weights that dense training would start from: −1, 0 where one was pruned, or 1."""
SCHEMES: dict[int, Callable[[MaskedNetwork, int], Contexts]] = {
    1: _initial,
    2: _layer_sign_initial,
    3: _channel,
    4: _kernel,
    6: _size_of_given,
}
OF_RANDOM = (1, 2, 3, 4)
OF_GIVEN = (3, 4, 6)
"""The schemes of masks over random and over given weights."""
