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
from fedpm.methods.statistics import LARGEST, NormStatistics, check_statistics
from fedpm.model.masking import MaskedNetwork
from fedpm.wire.message import Message
from tests.conftest import small_config


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
        forged = Message(**{**vars(message), "stats": np.full_like(message.stats, self.lie)}).to_bytes()
        return Reply(reply.client, ClientResult(forged), reply.sent, len(forged))


def run(config: Config, data: Dataset, lie: float) -> fedpm.Result:
    def start(experiment: Experiment) -> Lying:
        engine = Lying(experiment.clients)
        engine.lie = lie
        return engine

    return fedpm.run(config, net=normed(), data=data, start=start)


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


def test_the_median_counts() -> None:
    statistics = NormStatistics()
    for row in ([1.0, 5.0], [2.0, 6.0], [1e5, -1e5]):
        statistics.add(np.array(row, np.float32))
    assert statistics.median().tolist() == [2.0, 5.0]
