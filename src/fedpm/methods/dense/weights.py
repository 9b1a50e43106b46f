"""What the server of a dense method tells a client: the weights, or the seed alone before any training."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.methods.relay import join
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
    RELAYED = 19
    QUANTISED = 20
    STEPS = 21


STEP = struct.Struct("<B")
"""The form of the steps of a broadcast of several."""


DIVERGED = "broadcast weights are not finite: the global model diverged; lower dense.server_lr"
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
    """What a client reads out of a broadcast; of steps, the weights ``before`` the last one too, if they are kept."""

    seed: int
    weights: Vector
    stats: Vector
    before: Vector | None = None


def write_weights(content: Content, network: MaskedNetwork, precision: str) -> Broadcast:
    """Return a broadcast that needs no past, its weights as float32 or bfloat16."""
    if content.weights is None:
        form, data, stats = WeightForm.SEED, b"", content.stats[:0]
    else:
        form, stats = WeightForm[precision.upper()], content.stats
        data = content.weights.astype("<f4").tobytes() if form == WeightForm.FLOAT32 else _to_bfloat16(content.weights)
    return _message(content, network, form, data, stats)


def write_steps(content: Content, network: MaskedNetwork, form: WeightForm, steps: tuple[bytes, ...]) -> Broadcast:
    """Return the broadcast for a client that holds an earlier one: what each round since then added."""
    if len(steps) == 1:
        return _message(content, network, form, steps[0], content.stats)
    return _message(content, network, WeightForm.STEPS, STEP.pack(form) + join(list(steps)), content.stats)


def _message(content: Content, network: MaskedNetwork, form: WeightForm, data: bytes, stats: Vector) -> Broadcast:
    fingerprint = network.fingerprint(content.seed)
    body = _SEED.pack(content.seed) + data
    message = Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, body, stats)
    return Broadcast(message.to_bytes(), 8.0 * len(data))


def opened(message: Message, network: MaskedNetwork, round: int, own_seed: int) -> bytes:
    """Return what the broadcast that is due says beyond its seed, or raise WireError."""
    if len(message.coded) < _SEED.size:
        raise WireError(f"broadcast of {len(message.coded)} bytes: too short to hold a seed; it was cut")
    if message.form not in set(WeightForm):
        raise WireError(
            f"broadcast of form {message.form}: should be one of weights, {min(WeightForm)} to {max(WeightForm)}"
        )
    (seed,) = _SEED.unpack_from(message.coded)
    stats_size = 0 if message.form == WeightForm.SEED else network.stats_size
    message.expect(Kind.BROADCAST, network.fingerprint(own_seed), round, SERVER, stats_size)
    if message.floats:
        raise WireError("broadcast of weights with coded floats: they should be as they are; it is damaged")
    if seed != own_seed:
        raise WireError(f"broadcast of seed {seed} instead of {own_seed}: of another run", "wrong model")
    return message.coded[_SEED.size :]


def read_weights(message: Message, network: MaskedNetwork, round: int, own_seed: int) -> Told:
    """Read a broadcast that needs no past, or raise WireError."""
    data = opened(message, network, round, own_seed)
    form = WeightForm(message.form)
    if len(data) != _WIDTH[form] * network.size:
        raise WireError(f"broadcast of {len(data)} bytes of weights: should be {_WIDTH[form] * network.size}")
    if form == WeightForm.SEED:
        return Told(own_seed, network.dense_weights(own_seed), network.initial_stats())
    weights = np.frombuffer(data, "<f4").astype(np.float32) if form == WeightForm.FLOAT32 else _from_bfloat16(data)
    if not np.isfinite(weights).all():
        raise WireError(DIVERGED)
    return Told(own_seed, weights, message.stats)


def _to_bfloat16(weights: Vector) -> bytes:
    """Round to the nearest bfloat16, the upper half of a float32."""
    import torch

    return torch.from_numpy(weights).to(torch.bfloat16).view(torch.int16).numpy().astype("<i2").tobytes()


def _from_bfloat16(data: bytes) -> Vector:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
