"""Broadcasts that build on others: uploads passed on, from which clients make the server's weights, or its steps."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import WireError
from fedpm.methods.dense.drive import RotatedSigns
from fedpm.methods.dense.fedavg import Float32
from fedpm.methods.dense.gaussian import GaussianLevels
from fedpm.methods.dense.quantiser import Quantiser
from fedpm.methods.dense.state import DenseUpdate, Past
from fedpm.methods.dense.weights import Content, WeightForm, write_weights
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local
from fedpm.training.weights import WeightTrainer
from fedpm.wire.message import Kind, Message
from tests.experiment.test_loop import tapped_run
from tests.makers import make_dense
from tests.methods.dense.test_quantisers import LONG, SMALL
from tests.small import small_config, small_net


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "drive"},
        {"algorithm": "fedmrn", "clients": {"total": 4, "sampled": 3}},
        {"algorithm": "signsgd", "signsgd": {"vote": True}, "dense": {"server_decay": 0.7}},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_relay_ends_in_the_weights_of_float32_for_fewer_bytes(settings: dict[str, Any], data: Dataset) -> None:
    def ran(broadcast: str) -> fedpm.Result:
        dense = {**settings.get("dense", {}), "broadcast": broadcast}
        config = small_config(**{"local": {"epochs": 1}, **settings, "dense": dense})
        return fedpm.run(config, net=small_net(), data=data)

    relay, plain = ran("relay"), ran("float32")
    weights, others = relay.model.state_dict(), plain.model.state_dict()
    assert all(np.array_equal(weights[name].numpy(), others[name].numpy()) for name in others)
    for one, other in zip(relay.rounds, plain.rounds, strict=True):
        assert one["uplink_bytes"] == other["uplink_bytes"]
        assert one["train_loss"] == other["train_loss"], "clients trained from the same weights"
    down, full = (sum(record["downlink_bytes"] for record in result.rounds) for result in (relay, plain))
    assert down < 0.7 * full


def test_quantised_steps_take_a_bit_and_what_they_lose_is_added_to_the_next(data: Dataset) -> None:
    config = small_config(algorithm="fedavg", local={"epochs": 1}, rounds=4, dense={"broadcast": "quantised"})
    result, tapped = tapped_run(config, data)
    assert not any(record["rejected"] for record in result.rounds)
    assert all(record["downlink_bpp"] == pytest.approx(1.2, abs=0.2) for record in result.rounds[1:])
    assert {task.broadcast[6] for tasks in tapped.tasks[1:] for task in tasks} == {WeightForm.QUANTISED}
    method = make_dense(LONG, Float32(), broadcast_as="quantised", down=GaussianLevels(1))
    state, truth = method.init(), np.zeros(LONG.size)
    for number in range(1, 9):
        change = Streams(9).at(number).coarse_normal("delta", LONG.size)
        state = method.aggregate(state, [DenseUpdate(change, state.stats)])
        truth += change
    start = LONG.dense_weights(5)
    np.testing.assert_allclose(state.weights, start + truth, atol=1e-5)
    behind = float(((state.told - state.weights) ** 2).mean())  # e² = 0.571 · (1 + e²), where it settles
    assert behind == pytest.approx(0.571 / 0.429, rel=0.05)


def run_rounds(
    quantiser: Quantiser, rounds: int = 2, network: MaskedNetwork = LONG, **settings: Any
) -> tuple[Any, list[Any]]:
    """Return a method and its states, in which clients 4 and 2 took part at first, and client 7 later."""
    method = make_dense(network, quantiser, server_decay=0.5, down=GaussianLevels(1), **settings)
    states = [method.init()]
    for number in range(1, rounds + 1):
        state, updates = states[-1], []
        for client in (4, 2) if number < 3 else (7,):
            streams = Streams(5).at(number, client)
            delta = streams.coarse_normal("delta", network.size) * np.float32(1e-3)
            coded = quantiser.encode(delta, network, streams, streams).coded.data
            message = Message(Kind.UPLOAD, method.form, network.fingerprint(5), number, client, coded, state.stats)
            updates.append(method.decode(state, client, message.to_bytes()))
        states.append(method.aggregate(state, updates))
    return method, states


both = pytest.mark.parametrize("form", ["relay", "quantised"])


@both
def test_a_client_keeps_what_the_next_broadcast_builds_on(form: str) -> None:
    method, (*_, state) = run_rounds(RotatedSigns(), broadcast_as=form)
    assert method.holders(state) == {4: 2, 2: 2}
    brief = method.broadcast(state, since=2).payload
    full = write_weights(Content(5, 3, state.told, state.stats), LONG, "float32").payload
    assert len(brief) < 0.1 * len(full)
    told = pickle.loads(pickle.dumps(method)).reader.read(brief, 3, method.memory(state))  # noqa: S301
    assert np.array_equal(told.weights, state.told)
    assert np.array_equal(state.told, state.weights) == (form == "relay")
    assert method.remember(brief, 3, method.memory(state)) == method.remember(full, 3) == full
    again = method.from_arrays(method.to_arrays(state))
    assert method.broadcast(again, since=2).payload == brief


@both
def test_clients_that_missed_rounds_are_brought_up_to_date_or_sent_the_whole(form: str) -> None:
    network = MaskedNetwork(nn.Linear(128, 128, bias=False))
    method, states = run_rounds(RotatedSigns(), 40, network, broadcast_as=form)
    early, last = states[4], states[-1]
    assert method.holders(early) == {4: 2, 2: 2, 7: 4}
    held = method.remember(method.broadcast(states[1], since=1).payload, 2, method.memory(states[1]))
    missed, new = method.broadcast(early, since=2).payload, method.broadcast(early).payload
    assert {missed[6], new[6]} == {WeightForm.STEPS}
    for broadcast, memory in ((missed, held), (missed, method.memory(early)), (new, b""), (new, method.memory(early))):
        assert np.array_equal(method.reader.read(broadcast, 5, memory).weights, early.told)
    assert method.broadcast(last).payload[6] == WeightForm.FLOAT32, "40 steps of a bit are longer than the weights"
    assert method.holders(last) == {7: 40}, "clients 4 and 2 were there too long ago"
    assert sum(map(len, last.past.steps)) < 4 * network.size
    assert np.array_equal(method.reader.read(method.broadcast(last).payload, 41).weights, last.told)


@both
def test_a_client_starts_ahead_of_steps_as_far_as_the_last_of_them_went(form: str) -> None:
    trainer = WeightTrainer(LONG, Local(1, 64, 0.1, lookahead=0.5))
    method, (*_, before, state) = run_rounds(RotatedSigns(), 3, broadcast_as=form, trainer=trainer)
    held = method.remember(method.broadcast(before, since=2).payload, 3, method.memory(before))
    for memory in (held, method.memory(state)):
        told = method.reader.read(method.broadcast(state, since=3).payload, 4, memory)
        assert told.before is not None
        assert np.array_equal(told.before, before.told)
    ahead = state.told + np.float32(0.5) * (state.told - before.told)
    assert np.array_equal(trainer.local.start(told.weights, told.before), ahead)
    whole = method.reader.read(method.remember(method.broadcast(state, since=3).payload, 4, held), 4)
    assert trainer.local.start(whole.weights, whole.before) is whole.weights, "nobody knows what was before"


def test_a_client_without_the_last_weights_is_told_so() -> None:
    method, states = run_rounds(RotatedSigns(), 3)
    state = states[-1]
    brief, full = method.broadcast(state, since=3).payload, method.remember(method.broadcast(state).payload, 4)
    first = method.broadcast(method.init()).payload
    for memory in (b"", first, full):
        with pytest.raises(WireError, match="builds on that of round 3, which this client does not hold") as caught:
            method.reader.read(brief, 4, memory)
        assert caught.value.kind == "lacks"
    message = Message.from_bytes(brief)
    for coded, reason in ((message.coded[:8], "relays no upload"), (message.coded[:-4], "it was cut")):
        with pytest.raises(WireError, match=reason):
            method.reader.read(replace(message, coded=coded).to_bytes(), 4, method.memory(state))
    other = run_rounds(RotatedSigns(), 3, broadcast_as="quantised")[0]
    with pytest.raises(WireError, match="1 steps of form 19: of another method"):
        other.reader.read(brief, 4, method.memory(state))


def test_uploads_longer_than_the_weights_are_not_passed_on_nor_kept() -> None:
    method, states = run_rounds(Float32())
    assert method.holders(states[-1]) == {}
    assert states[-1].past == Past()
    quiet = make_dense(SMALL, RotatedSigns())
    assert quiet.aggregate(quiet.init(), iter(())).past == Past()


def test_a_step_that_is_not_finite_is_told_as_such() -> None:
    method = make_dense(SMALL, Float32(), broadcast_as="quantised", down=GaussianLevels(1))
    start = method.init()
    with np.errstate(over="ignore"):
        state = method.aggregate(start, [DenseUpdate(np.full(SMALL.size, 3e38, np.float32), start.stats)] * 2)
        state = method.aggregate(state, [DenseUpdate(np.full(SMALL.size, 3e38, np.float32), start.stats)] * 2)
    with pytest.raises(WireError, match="the global model diverged"):
        method.reader.read(method.broadcast(state).payload, 3)
