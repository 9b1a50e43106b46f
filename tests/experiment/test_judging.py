"""Who scores networks: the server, or the clients that hold examples out; and for whom a network is good."""

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedpm
from fedpm.data.datasets import Dataset, digits
from fedpm.data.federation import Federation
from fedpm.engines.base import Clients, Reply, Task
from fedpm.engines.inprocess import Sequential
from fedpm.engines.scoring import read_scores, write_scores
from fedpm.errors import ConfigError, DataError, WireError
from fedpm.experiment.build import build
from fedpm.experiment.record import clients_of
from fedpm.methods.base import ClientResult
from fedpm.training.evaluation import averaged
from fedpm.wire.message import Message
from tests.small import small_config, small_net
from tests.training.test_task import wrong

WORDS = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
AT_CLIENTS = {"evaluation": {"at": "clients"}, "data": {}}


def hospitals(**given: Any) -> Federation:
    """Three places of different sizes, whose labels are words."""
    data = digits()
    bounds = {"oslo": (0, 300), "bergen": (300, 400), "tromsø": (400, 460)}
    words = WORDS[data.train.y].tolist()
    places = {name: (data.train.x[start:end], words[start:end]) for name, (start, end) in bounds.items()}
    return fedpm.federation(places, classes=tuple(WORDS), **given)


class Weighed(Sequential):
    """Counts the bytes of scores that pass."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.passed: dict[int, list[int]] = {}

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        for reply in super().run(round, tasks):
            if tasks[0].score:
                sent = self.passed.setdefault(round - 1, [0, 0])
                sent[0] += reply.received
                sent[1] += reply.sent
            yield reply


@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_scores_at_the_clients_come_to_those_of_pooled_examples(algorithm: str) -> None:
    settings = {"algorithm": algorithm, "fedpm": {"ship": "thresholded"}}  # without examples, no server calibrates
    pooled = fedpm.run(small_config(**settings, data={}), net=small_net(), data=hospitals())
    asked: list[Weighed] = []

    def start(experiment: Any) -> Weighed:
        asked.append(Weighed(experiment.clients))
        return asked[0]

    spread = fedpm.run(small_config(**settings, **AT_CLIENTS), net=small_net(), data=hospitals(), start=start)
    for record, other in zip(spread.rounds, pooled.rounds, strict=True):
        assert record["mode"] == other["mode"]
        assert record["accuracy"] == pytest.approx(other["accuracy"], abs=1e-12)
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert record["validation_accuracy"] == pytest.approx(other["validation_accuracy"], abs=1e-12)
        assert record["class_accuracy"] == other["class_accuracy"]
        up, down = asked[0].passed[record["round"]]
        assert record["evaluation_uplink_bytes"] == up > 0
        assert record["uplink_bytes"] == other["uplink_bytes"] + up
        assert record["downlink_bytes"] == other["downlink_bytes"] + down
        assert record["uplink_bpp"] == other["uplink_bpp"], "which is of uploads alone"
        assert list(record["client_scores"]) == ["0", "1", "2"]
    for ours, theirs in zip(spread.model.parameters(), pooled.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    shipped, summary = spread.rounds[-1], spread.summary
    worst = min(shipped["client_scores"], key=lambda client: shipped["client_scores"][client] or 0)
    name = shipped["names"][int(worst)]
    assert summary["worst_client"] == {"client": name, "accuracy": shipped["client_scores"][worst]}


def test_accuracy_by_class_is_that_of_the_examples_of_each(data: Dataset) -> None:
    result = fedpm.run(small_config(rounds=1), net=small_net(), data=data)
    said = result.model(torch.from_numpy(data.test.x)).argmax(1).numpy()
    expected = [float((said[data.test.y == label] == label).mean()) for label in range(10)]
    assert result.summary["class_accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["fedpm", "fedmask", "fedavg", "fedmrn"])
def test_clients_score_before_and_after_their_training_and_train_as_ever(algorithm: str) -> None:
    settings: dict[str, Any] = {"algorithm": algorithm, "data": {}, "rounds": 2, "local": {"epochs": 4}}
    given: dict[str, Any] = {"net": small_net(), "data": hospitals(), "metrics": "loss"}
    local = fedpm.run(small_config(evaluation={"local": True}, **settings), **given)
    plain = fedpm.run(small_config(**settings), **given)
    for record, other in zip(local.rounds, plain.rounds, strict=True):
        assert {"client_before", "client_after"} <= record.keys()
        kept = {key: value for key, value in record.items() if not key.startswith(("client_", "seconds"))}
        assert kept == {key: value for key, value in other.items() if key != "seconds"}
    before, after = local.rounds[0]["client_before"], local.rounds[0]["client_after"]
    assert list(before) == list(after) == ["0", "1", "2"]
    assert sum(loss or 0 for loss in after.values()) < sum(loss or 0 for loss in before.values()), "training helps"
    assert local.summary["client_after"] == local.rounds[-1]["client_after"]


def test_examples_that_a_client_scores_on_are_its_own_and_not_trained_with(data: Dataset) -> None:
    config = small_config(evaluation={"local": True}, data={"split": "classes", "classes_per_client": 3})
    clients = build(config, net=small_net(), data=data).clients
    assert clients.held is not None
    for number, part in enumerate(clients.parts):
        mine, held = clients.train.take(part), clients.held.of(number)["validation"]
        assert set(held.y) <= set(mine.y)
        assert not {x.tobytes() for x in held.x} & {x.tobytes() for x in clients.train.x}
        assert len(held) == round(0.1 * (len(mine) + len(held)))


def test_what_is_said_of_scores_is_checked() -> None:
    experiment = build(small_config(**AT_CLIENTS), net=small_net(), data=hospitals())
    method, clients = experiment.method, experiment.clients
    payload = write_scores(clients, 1, Task(0, method.broadcast(method.init()).payload, score=True))
    due: dict[str, Any] = {"seed": 0, "round": 1, "client": 0}
    read = read_scores(method, experiment.task, 10, payload=payload, **due)
    assert set(read) == {"validation", "test"}
    assert set(read["validation"]) == set(method.modes)
    assert set(read["test"]) == set(method.final_modes)
    with pytest.raises(WireError, match="round 1 instead of 2"):
        read_scores(method, experiment.task, 10, payload=payload, **{**due, "round": 2})
    task = build(small_config(**AT_CLIENTS), net=small_net(), data=hospitals(), metrics=["accuracy", wrong]).task
    with pytest.raises(WireError, match="scores that cannot be read"):
        read_scores(method, task, 10, payload=payload, **due)
    message = Message.from_bytes(payload)
    rng, honest = np.random.default_rng(0), np.frombuffer(zlib.decompress(message.coded), "<f8")
    for _ in range(300):
        numbers = honest[: rng.integers(len(honest) + 1)].copy()
        for place in rng.integers(max(1, len(numbers)), size=min(3, len(numbers))):
            numbers[place] = rng.choice([np.nan, np.inf, -1.0, 0.5, 3.0, 1e300])
        hostile = replace(message, coded=zlib.compress(numbers.astype("<f8").tobytes())).to_bytes()
        with suppress(WireError):
            said = read_scores(method, experiment.task, 10, payload=hostile, **due)
            for modes in said.values():
                for mode, score in modes.items():
                    both = averaged([score, read["validation"][mode]])
                    assert math.isfinite(both.accuracy)
                    assert len(both.classes) in (0, 10)


def test_a_client_that_sends_no_scores_does_not_stop_the_others() -> None:
    class Mute(Sequential):
        def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
            for reply in super().run(round, tasks):
                mute = tasks[0].score and reply.client == 1
                yield Reply(1, ClientResult(b"garbage"), reply.sent, 7) if mute else reply

    config = small_config(rounds=1, **AT_CLIENTS)
    given: dict[str, Any] = {"net": small_net(), "data": hospitals()}
    record = fedpm.run(config, start=lambda experiment: Mute(experiment.clients), **given).rounds[0]
    assert list(record["client_scores"]) == ["0", "2"]


def test_who_is_served_worst_has_a_name() -> None:
    record: Any = {"clients": [0, 1], "names": ["oslo", "bergen"], "client_scores": {"0": 0.5, "1": None}}
    assert clients_of(record)["worst_client"] == {"client": "oslo", "accuracy": 0.5}
    record |= {"client_scores": {"0": 0.5, "1": 0.7}, "metrics": {"mse": 0.6}, "lower": ["mse"]}
    assert clients_of(record)["worst_client"] == {"client": "bergen", "mse": 0.7}


@pytest.mark.parametrize(
    ("settings", "given", "kind", "sentence"),
    [
        ({}, {"validation": 5}, DataError, "validation examples are the server's, and clients hold out none"),
        ({"privacy": {"unit": "client", "epsilon": 8.0}}, {}, ConfigError, "scores of clients' own examples would"),
    ],
)
def test_what_cannot_be_scored_at_clients_is_refused(
    settings: dict[str, Any], given: dict[str, Any], kind: type[Exception], sentence: str, data: Dataset
) -> None:
    if given:
        given = {"validation": (data.test.x, WORDS[data.test.y].tolist())}
    with pytest.raises(kind, match=re.escape(sentence)):
        fedpm.run(small_config(**AT_CLIENTS, **settings), net=small_net(), data=hospitals(**given))


def test_on_a_fleet_each_place_scores_its_own(data: Dataset) -> None:
    config = small_config(rounds=1, clients={"total": 3}, **AT_CLIENTS)
    given = hospitals(validation=(data.test.x, WORDS[data.test.y].tolist()))
    places = [build(config, net=small_net(), data=given.at(client), remote=True).clients for client in range(3)]

    class Fleet(Sequential):
        def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
            for task in tasks:
                yield from Sequential(places[task.client]).run(round, [task])

    server: dict[str, Any] = {"net": small_net(), "data": given.at(None), "remote": True}
    record = fedpm.run(config, start=lambda experiment: Fleet(experiment.clients), **server).rounds[0]
    assert list(record["client_scores"]) == ["0", "1", "2"]
    counts = [len(place.held.of(0)["validation"]) for place in places if place.held]
    assert counts == [round(0.1 * len(given.train.take(part))) for part in given.parts()]
