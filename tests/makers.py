"""Methods as tests need them: built by hand, of parts by name."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from fedpm.aggregation.mean import Mean
from fedpm.methods.base import Ingredients
from fedpm.methods.dense.deltas import Deltas
from fedpm.methods.dense.quantiser import Quantiser
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState
from fedpm.methods.statistics import write_floats
from fedpm.model.masking import MaskedNetwork
from fedpm.registry import CODERS, METHODS
from fedpm.rng import Streams
from fedpm.training.local import Local
from fedpm.training.scores import ScoreTrainer
from fedpm.training.weights import WeightTrainer
from fedpm.wire.coders.base import Coding
from fedpm.wire.message import Kind, Message

LOCAL = Local(1, 64, 0.1)


def coding_of(name: str) -> Coding:
    """Return a mask coder with its default settings."""
    spec = CODERS[name]
    return Coding.of(spec, spec.build(spec.settings() if spec.settings else None))


def make_fedpm(
    net: nn.Module | MaskedNetwork, codec: str = "shared-randomness", lookahead: float = 0.0, **settings: Any
) -> FedPM:
    """Return FedPM on a network, seed 5 unless told otherwise."""
    network = net if isinstance(net, MaskedNetwork) else MaskedNetwork(net)
    trainer = ScoreTrainer(network, replace(LOCAL, lookahead=lookahead))
    given = {"seed": 5, "trainer": trainer, "coding": coding_of(codec), **settings}
    return FedPM(network=network, **given)


def make_fedmask(network: MaskedNetwork, codec: str) -> FedPM:
    """Return FedMask on a network, seed 5."""
    coding = coding_of(codec)
    trainer = ScoreTrainer(network, LOCAL, threshold=True)
    return FedPM(network=network, seed=5, trainer=trainer, coding=coding, form=coding.threshold_form)


def make_dense(network: MaskedNetwork, quantiser: Quantiser, form: int = 16, **settings: Any) -> Deltas:
    """Return a dense method on a network, seed 5."""
    given = {"trainer": WeightTrainer(network, LOCAL), **settings}
    return Deltas(network=network, seed=5, quantiser=quantiser, form=form, **given)


def make_method(name: str, network: MaskedNetwork, example: tuple[int, ...], **settings: Any) -> Any:
    """Return a method as its file builds it, seed 5, with a table of its own settings."""
    spec = METHODS[name]
    tables = {spec.table: spec.settings(**settings)} if spec.settings else {}
    given = Ingredients(
        network=network, seed=5, local=LOCAL, aggregator=Mean(), example=np.ones(example, np.float32), tables=tables
    )
    return spec.build(given)


def upload(method: FedPM, state: MaskState, client: int) -> bytes:
    """Return an upload whose θ_k lies between θ_g and a random one; no training needed."""
    known = method.context(state, client)
    noise = Streams(99).at(known.shared.round, client).uint32("θ", method.network.size) / 2**32
    theta = (0.95 * known.theta.floats() + 0.05 * noise).astype(np.float32)
    _, coded = method.coding.coder.encode(theta, known, known.shared)
    stats = np.arange(method.network.stats_size, dtype=np.float32)
    fingerprint = method.network.fingerprint(method.seed)
    floats = write_floats(method.network, stats, state.stats)
    named = (Kind.UPLOAD, method.coding.form, fingerprint, known.shared.round, client)
    return Message(*named, coded.data, stats, floats).to_bytes()
