"""Genuine messages and a model file on a small network, and ways to damage them; for tests and benchmarks."""

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from fedpm.methods.dense.deltas import Deltas, DenseState
from fedpm.methods.dense.drive import RotatedSigns
from fedpm.methods.dense.eden import GaussianLevels
from fedpm.methods.dense.fedavg import Float32
from fedpm.methods.dense.qsgd import Levels
from fedpm.methods.dense.quantiser import Quantiser
from fedpm.methods.dense.signsgd import Signs
from fedpm.methods.dense.terngrad import Ternary
from fedpm.methods.dense.weights import read_weights
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.model.file import Model
from fedpm.model.masking import MaskedNetwork
from fedpm.registry import CODERS, METHODS
from fedpm.rng import Streams
from fedpm.wire.message import OVERHEAD, Kind, Message
from tests.makers import make_dense, make_fedmask, make_fedpm, upload


@dataclass(frozen=True)
class Target:
    """Genuine bytes, what their receiver makes of any bytes in their place, and how a forger mends damaged ones."""

    name: str
    genuine: bytes
    read: Callable[[bytes], bytes]
    forged: Callable[[bytes], bytes]


def advance(method: FedPM, state: MaskState, clients: int) -> MaskState:
    """Run a round of such uploads."""

    def updates() -> list[MaskUpdate]:
        return [method.decode(state, client, upload(method, state, client)) for client in range(clients)]

    return method.aggregate(state, updates())


def small(width: int) -> nn.Module:
    """Return a network with norm statistics."""
    norm = nn.BatchNorm1d(width, affine=False)
    return nn.Sequential(nn.Linear(12, width), norm, nn.ReLU(), nn.Linear(width, 4))


def targets() -> list[Target]:
    """Return a message of every coder and of every form of broadcast, and a model file."""
    net = small(60)
    found = []
    for codec in CODERS.names():
        width = 61 if codec == "relative-entropy" else 60  # other masks: its broadcasts are not those of the others
        method = make_fedpm(small(width), codec, reset_every=2)
        states = [method.init()]
        for _ in range(3):
            states.append(advance(method, states[-1], 6))
        found.append(
            Target(codec, upload(method, states[-1], 2), partial(read_upload, method, states[-1]), forged_message)
        )
        steps = tuple(method.broadcast(state, since=state.round) for state in states[2:])
        past = [method.broadcast(state).payload for state in states]
        chain = method.writer.chain(states[-1].history.content, steps)
        for name, message, round, memory in (
            ("seed", method.broadcast(states[0]), 1, b""),
            ("full", method.broadcast(states[-1]), 4, b""),
            ("brief", steps[-1], 4, past[2]),
            ("steps", chain, 4, past[1]),
        ):
            read = partial(read_broadcast, method, round, memory)
            found.append(Target(f"{codec} {name}", message.payload, read, forged_message))
    thresholded = [spec.name for spec in CODERS if spec.threshold_form is not None]
    found += [mask_by_threshold(MaskedNetwork(net), codec) for codec in thresholded]
    for name, quantiser in QUANTISERS.items():
        form = METHODS[name.split()[0]].form or 0
        found.append(dense(name, make_dense(MaskedNetwork(net), quantiser, form)))
    found += dense_broadcasts(MaskedNetwork(net))
    found.append(model_file(MaskedNetwork(net)))
    return found


QUANTISERS: dict[str, Quantiser] = {
    "fedavg": Float32(),
    "signsgd": Signs(),
    "terngrad": Ternary(),
    "qsgd": Levels(0.25),
    "drive": RotatedSigns(),
    "eden": GaussianLevels(1.0),
    "eden half": GaussianLevels(0.5),
    "eden two": GaussianLevels(2.0),
}


def mask_by_threshold(masked: MaskedNetwork, codec: str) -> Target:
    """Return an upload of FedMask."""
    method = make_fedmask(masked, codec)
    state = method.init()
    mask = Streams(98).bits("mask", masked.size).astype(np.float32)
    _, coded = method.coding.coder.encode(mask, method.context(state, 2), Streams(5).at(1, 2))
    stats = np.arange(masked.stats_size, dtype=np.float32)
    message = Message(Kind.UPLOAD, method.form or 0, masked.fingerprint(5), 1, 2, coded.data, stats)
    return Target(f"fedmask {codec}", message.to_bytes(), partial(read_upload, method, state), forged_message)


def dense(name: str, method: Deltas) -> Target:
    """Return an upload of a dense method whose changes are Gaussian."""
    masked, state = method.network, method.init()
    rng = Streams(5).at(1, 2)
    coded = method.quantiser.encode(Streams(97).coarse_normal("delta", masked.size), masked, rng, rng).coded
    stats = np.arange(masked.stats_size, dtype=np.float32)
    message = Message(Kind.UPLOAD, method.form, masked.fingerprint(5), 1, 2, coded.data, stats)
    return Target(name, message.to_bytes(), partial(read_delta, method, state), forged_message)


def dense_broadcasts(masked: MaskedNetwork) -> list[Target]:
    """Return the three forms of a broadcast of weights."""
    found = []
    for name, steps, precision in (("seed", 0, "float32"), ("float32", 1, "float32"), ("bfloat16", 2, "bfloat16")):
        method = make_dense(masked, Float32(), broadcast_as=precision)
        state = DenseState(steps, steps, masked.dense_weights(5), masked.initial_stats())
        genuine = method.broadcast(state).payload
        found.append(Target(f"dense {name}", genuine, partial(read_dense, masked, steps + 1), forged_message))
    return found


def model_file(masked: MaskedNetwork) -> Target:
    """Return a model file of the same network."""
    model = Model.make(
        masked,
        Streams(3).bits("mask", masked.size),
        masked.initial_stats(),
        seed=5,
        network=None,
        input_shape=(12,),
        input_dtype="float32",
        classes=tuple("abcd"),
        preprocessing="",
        provenance={"accuracy": 0.5, "config": {"seed": 5}},
    )

    def read(data: bytes) -> bytes:
        state = Model.from_bytes(data).module(masked.net).state_dict()
        return b"".join(tensor.numpy().tobytes() for tensor in state.values())

    return Target("model file", model.to_bytes(), read, forged_file)


def forged_file(data: bytes) -> bytes:
    """Return a damaged model file with its last length and checksum mended."""
    if len(data) < 40:
        return data
    header, mask = struct.unpack_from("<II", data, 12)
    data = data[:20] + struct.pack("<I", max(0, len(data) - 28 - header - mask)) + data[24:-4]
    return data + struct.pack("<I", zlib.crc32(data))


def read_delta(method: Deltas, state: DenseState, data: bytes) -> bytes:
    """Return what the server makes of a dense upload of client 2, which is always finite."""
    update = method.decode(state, 2, data)
    if not np.isfinite(update.delta).all():
        raise ArithmeticError("the server took a change that is not finite")
    return update.delta.tobytes() + update.stats.tobytes()


def read_dense(masked: MaskedNetwork, round: int, data: bytes) -> bytes:
    """Return the weights that a client starts from."""
    received = read_weights(data, masked, round, 5)
    return received.weights.tobytes() + received.stats.tobytes()


def read_upload(method: FedPM, state: MaskState, data: bytes) -> bytes:
    """Return what the server makes of an upload of client 2."""
    update = method.decode(state, 2, data)
    return update.mask.tobytes() + update.stats.tobytes()


def read_broadcast(method: FedPM, round: int, memory: bytes, data: bytes) -> bytes:
    """Return what a client that holds an earlier broadcast makes of one."""
    content = method.reader.read(data, round, memory)
    return content.posterior.theta.floats().tobytes() + content.stats.tobytes()


def damaged(genuine: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return the message with random damage: flips, cuts, insertions, swaps, parts of others, another message."""
    data = bytearray(genuine)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 | 1 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                del data[place:]
            case 3:
                data[place:place] = rng.randbytes(rng.randint(1, 40))
            case 4:
                del data[place : place + rng.randint(1, 40)]
            case 5:
                other = rng.choice(others)
                data[place:] = other[rng.randrange(len(other)) :]
            case _:
                data[:] = rng.choice(others)
    return bytes(data)


def forged_message(data: bytes) -> bytes:
    """Return damaged bytes with lengths and checksum mended, so that they reach the decoders behind them."""
    if len(data) < OVERHEAD:
        return data
    stats = struct.unpack_from("<I", data, OVERHEAD - 8)[0] % 256
    coded = max(0, len(data) - OVERHEAD - 4 * stats)
    data = data[: OVERHEAD + coded + 4 * stats]
    head = data[: OVERHEAD - 12] + struct.pack("<II", coded, (len(data) - OVERHEAD - coded) // 4)
    return head + struct.pack("<I", zlib.crc32(data[OVERHEAD:], zlib.crc32(head))) + data[OVERHEAD:]
