"""Uploads decoded in processes beside the server: the same models, the same complaints."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Fault, Reply, Task
from fedpm.engines.inprocess import Sequential
from fedpm.errors import ConfigError, EngineError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.decoding import Decoders
from fedpm.experiment.round import Exchange
from fedpm.methods.base import ClientResult
from tests.small import small_config, small_net


def records(result: fedpm.Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in result.rounds]


def replies_of(experiment: Experiment) -> list[Reply]:
    """Return those of six clients, of which one is damaged, one is another's, and one is silent."""
    broadcast = experiment.method.broadcast(experiment.method.init()).payload
    replies = list(Sequential(experiment.clients).run(1, [Task(client, broadcast) for client in range(6)]))
    answers = [reply.answer for reply in replies if isinstance(reply.answer, ClientResult)]
    replies[1] = replace(replies[1], answer=ClientResult(answers[1].payload[:-1] + b"x"))
    replies[3] = replace(replies[3], answer=answers[4])
    replies[4] = Reply(4, Fault("silent", "no answer"), sent=7, received=0)
    return replies


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "processes"), [("fedpm", 2), ("fedavg", 1), ("hidenseek", 1)])
def test_a_run_is_the_same_wherever_uploads_are_decoded(data: Dataset, algorithm: str, processes: int) -> None:
    config = small_config(algorithm=algorithm, rounds=2, clients={"total": 5})
    here = fedpm.run(config, net=small_net(), data=data)
    beside = fedpm.run(config, net=small_net(), data=data, decoders=processes)
    assert records(here) == records(beside)
    assert here.file.to_bytes() == beside.file.to_bytes()


@pytest.mark.slow
def test_complaints_are_the_same_wherever_uploads_are_decoded(data: Dataset) -> None:
    experiment = build(small_config(clients={"total": 6}), net=small_net(), data=data)
    sums = build(small_config(clients={"total": 6}, aggregator="mean", subtotals=True), net=small_net(), data=data)
    method, replies = experiment.method, replies_of(experiment)
    state = method.init()
    here, beside, added = (Exchange(list(range(6))) for _ in range(3))
    clients = [update.client for update in here.accepted(method, state, iter(replies))]
    with closing(Decoders(method, 2)) as decoders:
        assert [update.client for update in beside.accepted(method, state, iter(replies), decoders)] == clients
    with closing(Decoders(sums.method, 1)) as decoders:
        (total,) = added.summed(state, iter(replies), decoders)
    assert list(total.clients) == clients == [0, 2, 5]
    assert list(here.rejected) == ["1", "3", "4"]
    for other in (beside, added):
        assert other.rejected == here.rejected
        assert other.faults == here.faults
        assert other.traffic(1000) == here.traffic(1000)


@pytest.mark.slow
def test_sums_of_processes_give_the_model_of_single_masks(data: Dataset) -> None:
    settings: dict[str, Any] = {"clients": {"total": 5}, "aggregator": "mean"}
    single = fedpm.run(small_config(**settings, aggregation={"relay": False}), net=small_net(), data=data)
    sums = fedpm.run(small_config(**settings, decoders=2, subtotals=True), net=small_net(), data=data)
    assert records(single) == records(sums)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_with_a_sentence(data: Dataset) -> None:
    experiment = build(small_config(clients={"total": 6}), net=small_net(), data=data)
    state = experiment.method.init()
    with closing(Decoders(experiment.method, 2)) as decoders:
        decoders._children[0].process.kill()
        with pytest.raises(EngineError, match="decodes ended unexpectedly"):
            list(decoders.decoded(state, iter(replies_of(experiment))))


def test_sums_are_refused_where_single_masks_are_needed(data: Dataset) -> None:
    for settings, words in (
        ({}, "looks at single uploads"),  # the peer filter
        ({"algorithm": "fedavg"}, "only FedPM"),
        ({"codec": "secure-sum", "aggregator": "mean"}, "no uploads to add up"),
    ):
        with pytest.raises(ConfigError, match=words):
            build(small_config(subtotals=True, **settings), net=small_net(), data=data)
