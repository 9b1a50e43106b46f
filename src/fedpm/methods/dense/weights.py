"""What the server of a dense method tells a client: the weights, or the seed alone before any training."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.rng import SERVER
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

_SEED = struct.Struct("<Q")


class WeightForm(IntEnum):
    """How a broadcast of weights is coded; the numbers are none of those of masks."""

    SEED = 16
    FLOAT32 = 17
    BFLOAT16 = 18


_WIDTH = {WeightForm.SEED: 0, WeightForm.FLOAT32: 4, WeightForm.BFLOAT16: 2}


@dataclass(frozen=True)
class Content:
    """What a broadcast says; ``weights`` is None before any training."""

    seed: int
    round: int
    weights: Vector | None
    stats: Vector


@dataclass(frozen=True)
class Told:
    """What a client reads out of a broadcast."""

    seed: int
    weights: Vector
    stats: Vector


def write_weights(content: Content, network: MaskedNetwork, precision: str) -> Broadcast:
    """Return the broadcast, its weights as float32 or bfloat16."""
    if content.weights is None:
        form, data, stats = WeightForm.SEED, b"", content.stats[:0]
    else:
        form, stats = WeightForm[precision.upper()], content.stats
        data = content.weights.astype("<f4").tobytes() if form == WeightForm.FLOAT32 else _to_bfloat16(content.weights)
    fingerprint = network.fingerprint(content.seed)
    body = _SEED.pack(content.seed) + data
    message = Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, body, stats)
    return Broadcast(message.to_bytes(), 8.0 * len(data))


def read_weights(broadcast: bytes, network: MaskedNetwork, round: int, own_seed: int) -> Told:
    """Read a broadcast, or raise WireError."""
    message = Message.from_bytes(broadcast)
    if len(message.coded) < _SEED.size:
        raise WireError(f"broadcast of {len(message.coded)} bytes: too short to hold a seed; it was cut")
    if message.form not in _WIDTH:
        raise WireError(
            f"broadcast of form {message.form}: should be one of weights, {min(WeightForm)} to {max(WeightForm)}"
        )
    form = WeightForm(message.form)
    (seed,) = _SEED.unpack_from(message.coded)
    stats_size = 0 if form == WeightForm.SEED else network.stats_size
    message.expect(Kind.BROADCAST, network.fingerprint(own_seed), round, SERVER, stats_size)
    if seed != own_seed:
        raise WireError(f"broadcast of seed {seed} instead of {own_seed}: of another run", "wrong model")
    data = message.coded[_SEED.size :]
    if len(data) != _WIDTH[form] * network.size:
        raise WireError(f"broadcast of {len(data)} bytes of weights: should be {_WIDTH[form] * network.size}")
    if form == WeightForm.SEED:
        return Told(seed, network.dense_weights(seed), network.initial_stats())
    weights = np.frombuffer(data, "<f4").astype(np.float32) if form == WeightForm.FLOAT32 else _from_bfloat16(data)
    if not np.isfinite(weights).all():
        raise WireError("broadcast weights are not finite: the global model diverged; lower dense.server_lr")
    return Told(seed, weights, message.stats)


def _to_bfloat16(weights: Vector) -> bytes:
    """Round to the nearest bfloat16, the upper half of a float32."""
    import torch

    return torch.from_numpy(weights).to(torch.bfloat16).view(torch.int16).numpy().astype("<i2").tobytes()


def _from_bfloat16(data: bytes) -> Vector:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
