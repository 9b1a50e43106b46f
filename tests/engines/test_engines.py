"""One contract for every engine: the same replies, in order."""

import os
import signal
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from fedpm.data.datasets import Dataset, Shard
from fedpm.engines.base import Clients, Task
from fedpm.engines.inprocess import Sequential, Workers
from fedpm.errors import EngineError, FedPMError
from fedpm.experiment.build import build
from fedpm.methods.base import ClientResult
from fedpm.rng import Streams
from tests.conftest import small_config, small_net


@pytest.mark.slow
def test_worker_processes_give_the_replies_of_a_single_one(data: Dataset) -> None:
    experiment = build(small_config(), net=small_net(), data=data)
    broadcast = experiment.algorithm.broadcast(experiment.algorithm.init()).payload
    workers = Workers(experiment.clients, 2)
    try:
        for chosen in ([0, 1, 2, 3], [2, 3], [1]):
            tasks = [Task(client, broadcast) for client in chosen]
            expected = list(Sequential(experiment.clients).run(1, tasks))
            assert [client for client, _ in expected] == chosen
            assert list(workers.run(1, tasks)) == expected
    finally:
        workers.close()


@dataclass(frozen=True)
class Misbehaving:
    """An algorithm whose client 1 fails in a chosen way."""

    way: str
    modes: tuple[str, ...] = field(default=())

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes) -> ClientResult:
        if rng.client == 1 and self.way == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if rng.client == 1:
            raise FedPMError("no luck")
        return ClientResult(broadcast)


def workers_of(way: str) -> Workers:
    train = Shard(np.zeros((3, 1), np.float32), np.zeros(3, np.int64))
    parts = [np.array([i]) for i in range(3)]
    return Workers(Clients(Misbehaving(way), train, parts, Streams(0), 1), 2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_no_hang() -> None:
    workers = workers_of("dies")
    with pytest.raises(EngineError, match="worker process ended"):
        list(workers.run(1, [Task(client, b"hello") for client in range(3)]))
    workers.close()


@pytest.mark.slow
def test_an_error_of_a_client_reaches_the_caller() -> None:
    workers = workers_of("raises")
    with pytest.raises(FedPMError, match="no luck"):
        list(workers.run(1, [Task(client, b"hello") for client in range(3)]))
    pids = list(workers._pool._processes)
    workers.close()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_network_that_cannot_be_sent_to_workers_is_refused() -> None:
    class Local(Misbehaving):  # a class of a function cannot be imported elsewhere
        pass

    train = Shard(np.zeros((3, 1), np.float32), np.zeros(3, np.int64))
    with pytest.raises(EngineError, match="worker processes could not start"):
        Workers(Clients(Local("raises"), train, [], Streams(0), 1), 2)
