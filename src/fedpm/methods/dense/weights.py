"""What the server of a dense method tells a client: the weights, or the seed alone before any training."""

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import SERVER
from fedpm.wire.message import Kind, Message

_SEED = struct.Struct("<Q")


class Form(IntEnum):
    """How a broadcast of weights is coded; the numbers are none of those of masks."""

    SEED = 16
    FLOAT32 = 17
    BFLOAT16 = 18


_WIDTH = {Form.SEED: 0, Form.FLOAT32: 4, Form.BFLOAT16: 2}


@dataclass(frozen=True)
class Content:
    """What a broadcast says; ``weights`` is None before any training."""

    seed: int
    round: int
    weights: Vector | None
    stats: Vector


@dataclass(frozen=True)
class Received:
    """What a client reads out of a broadcast."""

    seed: int
    weights: Vector
    stats: Vector


def write_weights(content: Content, network: MaskedNetwork, precision: str) -> Broadcast:
    """Return the broadcast, its weights as float32 or bfloat16."""
    if content.weights is None:
        form, data, stats = Form.SEED, b"", content.stats[:0]
    else:
        form, stats = Form[precision.upper()], content.stats
        data = content.weights.astype("<f4").tobytes() if form == Form.FLOAT32 else _to_bfloat16(content.weights)
    fingerprint = network.fingerprint(content.seed)
    body = _SEED.pack(content.seed) + data
    message = Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, body, stats)
    return Broadcast(message.to_bytes(), 8.0 * len(data))


def read_weights(broadcast: bytes, network: MaskedNetwork, round: int) -> Received:
    """Read a broadcast, or raise WireError."""
    message = Message.from_bytes(broadcast)
    if len(message.coded) < _SEED.size:
        raise WireError(f"broadcast of {len(message.coded)} bytes: too short to hold a seed; it was cut")
    if message.form not in _WIDTH:
        raise WireError(f"broadcast of form {message.form}: should be one of weights, {min(Form)} to {max(Form)}")
    form = Form(message.form)
    (seed,) = _SEED.unpack_from(message.coded)
    stats_size = 0 if form == Form.SEED else network.stats_size
    message.expect(Kind.BROADCAST, network.fingerprint(seed), round, SERVER, stats_size)
    data = message.coded[_SEED.size :]
    if len(data) != _WIDTH[form] * network.size:
        raise WireError(f"broadcast of {len(data)} bytes of weights: should be {_WIDTH[form] * network.size}")
    if form == Form.SEED:
        return Received(seed, network.dense_weights(seed), network.initial_stats())
    weights = np.frombuffer(data, "<f4").astype(np.float32) if form == Form.FLOAT32 else _from_bfloat16(data)
    if not np.isfinite(weights).all():
        raise WireError("broadcast weights are not finite: the global model diverged; lower dense.server_lr")
    return Received(seed, weights, message.stats)


def _to_bfloat16(weights: Vector) -> bytes:
    """Round to the nearest bfloat16, the upper half of a float32."""
    return torch.from_numpy(weights).to(torch.bfloat16).view(torch.int16).numpy().astype("<i2").tobytes()


def _from_bfloat16(data: bytes) -> Vector:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
