"""One upload does not kill a network with batch norm."""

from typing import Any

import numpy as np
import pytest
from torch import nn

import fedpm
from fedpm.config import Config
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Reply
from fedpm.engines.inprocess import Sequential
from fedpm.errors import WireError
from fedpm.experiment.build import Experiment
from fedpm.methods.base import ClientResult
from fedpm.methods.statistics import LARGEST, Floats, check_statistics
from fedpm.model.masking import MaskedNetwork
from fedpm.wire.message import Message
from tests.fuzzing import advance
from tests.makers import make_fedpm, upload
from tests.small import small_config


def normed() -> nn.Module:
    norm = nn.BatchNorm1d(32, affine=False)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), norm, nn.ReLU(), nn.Linear(32, 10))


class Lying(Sequential):
    """An engine whose client 1 sends other statistics in round 2."""

    lie = 0.0

    def run(self, round: int, tasks: Any) -> Any:
        for reply in super().run(round, tasks):
            yield self.changed(reply) if (round, reply.client) == (2, 1) else reply

    def changed(self, reply: Reply) -> Reply:
        assert isinstance(reply.answer, ClientResult)
        message = Message.from_bytes(reply.answer.payload)
        lies = np.full(self._clients.method.network.stats_size, self.lie, np.float32)
        forged = Message(**{**vars(message), "stats": lies, "floats": b""}).to_bytes()
        return Reply(reply.client, ClientResult(forged), reply.sent, len(forged))


def run(config: Config, data: Dataset, lie: float) -> fedpm.Result:
    def start(experiment: Experiment) -> Lying:
        engine = Lying(experiment.clients)
        engine.lie = lie
        return engine

    return fedpm.run(config, net=normed(), data=data, start=start)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_a_lie_about_statistics_is_refused_or_outvoted(algorithm: str, data: Dataset) -> None:
    config = small_config(rounds=3, data={}, local={"epochs": 3}, algorithm=algorithm)
    honest = fedpm.run(config, net=normed(), data=data)
    for lie, faults in ((1e6, {"garbage": 1}), (-1.0, {"garbage": 1}), (0.99 * LARGEST, {})):
        result = run(config, data, lie)
        assert result.rounds[1]["faults"] == faults
        assert result.summary["accuracy"] > honest.summary["accuracy"] - 0.1


def test_what_no_training_gives_is_refused() -> None:
    network = MaskedNetwork(normed())
    good = network.initial_stats()
    check_statistics(network, good)
    check_statistics(MaskedNetwork(nn.Linear(2, 2)), np.zeros(0, np.float32))
    for place, value in ((0, LARGEST), (0, -LARGEST), (40, -0.5)):  # means come first, then variances
        bad = good.copy()
        bad[place] = value
        with pytest.raises(WireError, match="diverged, or it lies"):
            check_statistics(network, bad)
    good[0] = -3.0
    check_statistics(network, good)


def test_the_median_of_statistics_and_the_mean_of_trained_floats_count() -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    assert list(network.stats) == ["1.running_mean", "1.running_var", "1.weight", "1.bias"]
    floats = Floats(network)
    for row in ([1.0, 5.0, 1.0, 0.0], [2.0, 6.0, 2.0, 0.0], [1e5, -1e5, 3.0, 3.0]):
        floats.add(np.array(row, np.float32))
    assert floats.aggregate(np.array([0.0, 1.0, 0.0, 0.0], np.float32)).tolist() == [2.0, 5.0, 2.0, 1.0]


def test_one_client_moves_trained_floats_no_further_than_thrice_the_others() -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1)))
    assert list(network.stats) == ["1.weight", "1.bias"]
    known, floats = np.array([1.0, 0.0], np.float32), Floats(network)
    for row in ([1.2, 0.0], [1.0, 0.1], [1.1, 0.0], [1.0, -9e5]):  # lengths 0.2, 0.1, 0.1 and a lie: the bound is 0.45
        floats.add(np.array(row, np.float32))
    assert floats.aggregate(known) == pytest.approx([1.075, (0.1 - 0.45) / 4])


def test_clients_hold_the_server_s_own_floats_for_a_fraction_of_the_bytes() -> None:
    method = make_fedpm(normed(), reset_every=3)
    states, past = [method.init()], [method.broadcast(method.init()).payload]
    for _ in range(3):
        states.append(advance(method, states[-1], 3))
        past.append(method.broadcast(states[-1]).payload)
    brief = method.broadcast(states[-1], since=states[-1].round).payload
    sent = upload(method, states[-1], 2)
    for payload, round, memory in ((past[-1], 4, b""), (brief, 4, past[-2])):
        assert np.array_equal(method.reader.read(payload, round, memory).stats, states[-1].stats)
    for payload in (brief, sent):
        assert 0 < len(Message.from_bytes(payload).floats) < method.network.stats_size
    decoded = method.decode(states[-1], 2, sent).stats
    wanted = np.arange(method.network.stats_size)
    assert np.abs(decoded - wanted).max() < 0.05 * wanted.max()
