"""Genuine messages and a model file on a small network, and ways to damage them; for tests and benchmarks."""

import random
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from fedpm.errors import ArtifactError, WireError
from fedpm.methods.dense import signsgd
from fedpm.methods.dense.deltas import Deltas
from fedpm.methods.dense.drive import RotatedSigns
from fedpm.methods.dense.fedavg import Float32
from fedpm.methods.dense.fedmrn import MaskedNoise
from fedpm.methods.dense.gaussian import GaussianLevels
from fedpm.methods.dense.qsgd import Levels
from fedpm.methods.dense.quantiser import Quantiser
from fedpm.methods.dense.state import DenseState, DenseUpdate
from fedpm.methods.dense.terngrad import Ternary
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.methods.mask.sums import SubAggregator, read_subtotal
from fedpm.methods.statistics import write_floats
from fedpm.model.file import Model
from fedpm.model.masking import MaskedNetwork
from fedpm.registry import CODERS, METHODS
from fedpm.rng import Streams
from fedpm.wire.masks import Mask, Signs
from fedpm.wire.message import OVERHEAD, Kind, Message
from tests.makers import make_dense, make_fedmask, make_fedpm, make_method, upload


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
    methods = [(codec, make_fedpm(small(width_of(codec)), codec, reset_every=2)) for codec in CODERS.names()]
    methods.append(("ahead", make_fedpm(small(63), reset_every=2, lookahead=0.6)))
    for label, method in methods:
        states = [method.init()]
        for _ in range(3):
            states.append(advance(method, states[-1], 6))
        found.append(
            Target(label, upload(method, states[-1], 2), partial(read_upload, method, states[-1]), forged_message)
        )
        steps = tuple(method.broadcast(state, since=state.round) for state in states[2:])
        fulls = [method.writer.full(state.history.content) for state in states[-2:]]
        past = [method.broadcast(state).payload for state in states]
        chain = method.writer.chain(states[-1].history.content, steps)
        for name, message, round, memory in (
            ("seed", method.broadcast(states[0]), 1, b""),
            ("full", fulls[-1], 4, b""),
            ("brief", steps[-1], 4, past[2]),
            ("steps", chain, 4, past[1]),
            ("both", method.writer.both(states[-1].history.content, *fulls), 4, b""),
        ):
            read = partial(read_broadcast, method, round, memory)
            found.append(Target(f"{label} {name}", message.payload, read, forged_message))
    found.append(subtotal(MaskedNetwork(net)))
    thresholded = [spec.name for spec in CODERS if spec.threshold_form is not None]
    found += [mask_by_threshold(MaskedNetwork(net), codec) for codec in thresholded]
    for name, quantiser in QUANTISERS.items():
        form = METHODS[name.split()[0]].form or 0
        found.append(dense(name, make_dense(MaskedNetwork(net), quantiser, form)))
    found += dense_broadcasts(MaskedNetwork(net))
    found.append(signs(MaskedNetwork(net)))
    found += ranks(MaskedNetwork(net))
    found.append(model_file(MaskedNetwork(net), "model file", Streams(3).bits("mask", MaskedNetwork(net).size), net))
    wider = small(61)  # so that no file can stand for another
    other = MaskedNetwork(wider)
    found.append(model_file(other, "model file of signs", ternary(other), wider))
    base = with_values(small(62))
    given = MaskedNetwork(base, weights="given")
    found.append(model_file(given, "model file over a base", Streams(3).bits("mask", given.size), base))
    found += over_a_base(given)
    return found


def width_of(codec: str) -> int:
    """Return a width by which broadcasts of other masks are not those of the others."""
    return 61 if codec == "relative-entropy" else 60


QUANTISERS: dict[str, Quantiser] = {
    "fedavg": Float32(),
    "signsgd": signsgd.Signs(),
    "terngrad": Ternary(),
    "qsgd": Levels(0.25),
    "drive": RotatedSigns(),
    "eden": GaussianLevels(1.0),
    "eden half": GaussianLevels(0.5),
    "eden two": GaussianLevels(2.0),
    "fedmrn": MaskedNoise(1.0),
    "fedmrn signed": MaskedNoise(1.0, signed=True),
}


def over_a_base(given: MaskedNetwork) -> list[Target]:
    """Return an upload and a broadcast of masks over given weights."""
    method = make_fedpm(given)
    state = advance(method, method.init(), 6)
    up = Target("over a base", upload(method, state, 2), partial(read_upload, method, state), forged_message)
    full, read = method.broadcast(state).payload, partial(read_broadcast, method, 2, b"")
    return [up, Target("over a base, full", full, read, forged_message)]


def subtotal(masked: MaskedNetwork) -> Target:
    """Return the sum of a sub-aggregator with a client that it refused."""
    method = make_fedpm(masked)
    state = advance(method, method.init(), 4)
    adding = SubAggregator(method, state, 1)
    for client in (2, 5, 7):
        adding.add(client, upload(method, state, client) if client != 5 else b"garbage")

    def read(data: bytes) -> bytes:
        found = read_subtotal(method, state, 1, (2, 5, 7), data)
        refused = "".join(f"{client} {error.kind} {error}" for client, error in found.refused.items())
        return found.ones.tobytes() + found.floats.tobytes() + bytes(found.clients) + refused.encode()

    return Target("sum of masks", adding.message(), read, forged_message)


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
    floats = write_floats(masked, stats, state.stats)
    message = Message(Kind.UPLOAD, method.form, masked.fingerprint(5), 1, 2, coded.data, stats, floats)
    return Target(name, message.to_bytes(), partial(read_delta, method, state), forged_message)


def dense_broadcasts(masked: MaskedNetwork) -> list[Target]:
    """Return the forms of a broadcast of weights."""
    found = []
    for name, steps, precision in (("seed", 0, "float32"), ("float32", 1, "float32"), ("bfloat16", 2, "bfloat16")):
        method = make_dense(masked, Float32(), broadcast_as=precision)
        state = DenseState(steps, steps, masked.dense_weights(5), masked.initial_stats(), masked.dense_weights(5))
        genuine = method.broadcast(state).payload
        found.append(Target(f"dense {name}", genuine, partial(read_dense, method, steps + 1, b""), forged_message))
    for name, broadcast_as, first in (("relayed", "relay", 1), ("quantised", "quantised", 4)):
        method = make_dense(masked, signsgd.Signs(), 17, broadcast_as=broadcast_as, down=GaussianLevels(1))
        states, rng = [method.init()], Streams(5).at(1, 2)
        signs = method.quantiser.encode(Streams(97).coarse_normal("delta", masked.size), masked, rng, rng).coded.data
        update = DenseUpdate(method.quantiser.decode(signs, masked, rng), masked.initial_stats(), 2, signs)
        for _ in range(first + 2):
            states.append(method.aggregate(states[-1], [update, replace(update, client=3)]))
        for kind, after, since in ((name, states[first], first), (f"{name} steps", states[first + 2], None)):
            memory = method.memory(after) if since else b""
            read = partial(read_dense, method, after.round + 1, memory)
            genuine = method.broadcast(after, since=since).payload
            found.append(Target(f"dense {kind}", genuine, read, forged_message))
    return found


def with_values(net: nn.Module) -> nn.Module:
    """Return a network with the same values everywhere, as a pretrained one has."""
    for name, parameter in net.named_parameters():
        values = Streams(4).coarse_normal(name, parameter.numel())
        parameter.data = torch.from_numpy(values).reshape(parameter.shape)
    return net


def signs(masked: MaskedNetwork) -> Target:
    """Return an upload of HideNseek."""
    method = make_method("hidenseek", masked, (1, 12))
    state, votes = method.init(), method.votes
    up = Streams(98).bits("signs", method.pruned.size).astype(np.float32)
    _, coded = votes.coding.coder.encode(up, votes.context(state, 2), Streams(5).at(1, 2))
    stats = np.arange(masked.stats_size, dtype=np.float32)
    fingerprint = method.pruned.fingerprint(5)
    message = Message(Kind.UPLOAD, votes.form, fingerprint, 1, 2, coded.data, stats)
    return Target("hidenseek", message.to_bytes(), partial(read_upload, votes, state), forged_message)


def ranks(masked: MaskedNetwork) -> list[Target]:
    """Return an upload and a broadcast of FRL."""
    method = make_method("frl", masked, (1, 12))
    start, stats = method.init(), np.arange(masked.stats_size, dtype=np.float32)
    order = replace(start, votes=1, ranks=method._ranked(Streams(98).words("ranks", masked.size)), stats=stats)
    data = Message.from_bytes(method.broadcast(order).payload).coded[8:]
    sent = Message(Kind.UPLOAD, METHODS["frl"].form or 0, masked.fingerprint(5), 1, 2, data, stats).to_bytes()

    def read(data: bytes) -> bytes:
        update = method.decode(start, 2, data)
        return bytes(update.ranks.tobytes() + update.stats.tobytes())

    def told(data: bytes) -> bytes:
        found, stats = method.read(data, 1)
        return bytes(found.tobytes() + stats.tobytes())

    broadcast = method.broadcast(order).payload
    return [Target("frl", sent, read, forged_message), Target("frl orders", broadcast, told, forged_message)]


def ternary(masked: MaskedNetwork) -> Signs:
    """Return signs with zeros among them."""
    return (Streams(3).uint8("signs", masked.size) % 3).astype(np.int8) - np.int8(1)


def model_file(masked: MaskedNetwork, name: str, mask: Mask | Signs, net: nn.Module) -> Target:
    """Return a model file of the same network."""
    model = Model.make(
        masked,
        mask,
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
        state = Model.from_bytes(data).module(net).state_dict()
        return b"".join(tensor.numpy().tobytes() for tensor in state.values())

    return Target(name, model.to_bytes(), read, forged_file)


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


def read_dense(method: Deltas, round: int, memory: bytes, data: bytes) -> bytes:
    """Return the weights that a client starts from."""
    received = method.reader.read(data, round, memory)
    return received.weights.tobytes() + received.stats.tobytes()


def read_upload(method: FedPM, state: MaskState, data: bytes) -> bytes:
    """Return what the server makes of an upload of client 2."""
    update = method.decode(state, 2, data)
    return update.mask.tobytes() + update.stats.tobytes()


def read_broadcast(method: FedPM, round: int, memory: bytes, data: bytes) -> bytes:
    """Return from where a client starts that holds an earlier broadcast, and what it keeps of the one before."""
    content = method.reader.read(data, round, memory)
    return b"".join(one.start.floats().tobytes() + one.stats.tobytes() for one in (content, content.before or content))


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


def strangers(target: Target, targets: list[Target]) -> list[bytes]:
    """Return all messages but those that are genuine in its place too, and say something else: of the same round."""
    right = target.read(target.genuine)

    def rivals(data: bytes) -> bool:
        with suppress(WireError, ArtifactError):
            return target.read(data) != right
        return False

    return [other.genuine for other in targets if not rivals(other.genuine)]


def forged_message(data: bytes) -> bytes:
    """Return damaged bytes with lengths and checksum mended, so that they reach the decoders behind them."""
    if len(data) < OVERHEAD:
        return data
    width = 1 if data[7] else 4  # coded floats are counted in bytes
    stats = struct.unpack_from("<I", data, OVERHEAD - 8)[0] % 256
    coded = max(0, len(data) - OVERHEAD - width * stats)
    data = data[: OVERHEAD + coded + width * stats]
    head = data[: OVERHEAD - 12] + struct.pack("<II", coded, (len(data) - OVERHEAD - coded) // width)
    return head + struct.pack("<I", zlib.crc32(data[OVERHEAD:], zlib.crc32(head))) + data[OVERHEAD:]
