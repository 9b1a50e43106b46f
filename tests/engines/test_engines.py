"""One contract for every engine: the same replies, in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedpm.data.datasets import Dataset, Shard
from fedpm.engines.base import Clients, Task
from fedpm.engines.inprocess import Sequential, Workers, replied
from fedpm.errors import EngineError, FedPMError
from fedpm.experiment.build import build
from fedpm.methods.base import ClientResult
from fedpm.rng import Streams
from tests.conftest import small_config, small_net
from tests.marked import marked


@pytest.mark.slow
def test_worker_processes_give_the_replies_of_a_single_one(data: Dataset) -> None:
    experiment = build(small_config(), net=small_net(), data=data)
    broadcast = experiment.method.broadcast(experiment.method.init()).payload
    workers = Workers(experiment.clients, 2)
    try:
        for chosen in ([0, 1, 2, 3], [2, 3], [1]):
            tasks = [Task(client, broadcast) for client in chosen]
            expected = list(Sequential(experiment.clients).run(1, tasks))
            assert [reply.client for reply in expected] == chosen
            assert list(workers.run(1, tasks)) == expected
    finally:
        workers.close()


class UnsentError(Exception):
    """An error that pickle cannot make again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@dataclass(frozen=True)
class Misbehaving:
    """An algorithm whose broadcast says how its clients fail."""

    modes: tuple[str, ...] = field(default=())

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes) -> ClientResult:
        if broadcast == b"dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if broadcast == b"hangs":
            time.sleep(600)
        if broadcast == b"raises":
            raise FedPMError("no luck")
        if broadcast == b"lacks a file":
            raise FileNotFoundError(2, "no such file", "images.npy")
        if broadcast == b"raises what cannot be sent":
            raise UnsentError("no", "luck")
        return ClientResult(broadcast)


LARGE = bytes(10**6)
"""More than a pipe holds."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    train = Shard(np.zeros((3, 1), np.float32), np.zeros(3, np.int64))
    parts = [np.array([i]) for i in range(3)]
    started = Workers(Clients(Misbehaving(), train, parts, Streams(0), 1), 2)  # type: ignore[arg-type]
    pids = [worker.process.pid for worker in started._workers]
    yield started
    started.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        (b"raises", FedPMError, "no luck"),
        (b"lacks a file", FileNotFoundError, "images.npy"),
        (b"raises what cannot be sent", EngineError, "client 0: UnsentError: noluck"),
    ],
)
def test_an_error_of_a_client_reaches_the_caller(
    workers: Workers, way: bytes, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        list(workers.run(1, [Task(0, way)]))
    assert list(workers.run(2, [Task(1, LARGE)])) == [replied(Task(1, LARGE), ClientResult(LARGE))]


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_no_hang(workers: Workers) -> None:
    tasks = [Task(0, LARGE), Task(1, b"dies"), Task(2, LARGE)]
    with pytest.raises(EngineError, match=r"worker process ended unexpectedly \(its process ended with code -9\)"):
        list(workers.run(3, tasks))


@pytest.mark.slow
def test_a_round_that_is_broken_off_leaves_no_worker_behind() -> None:
    train = Shard(np.zeros((3, 1), np.float32), np.zeros(3, np.int64))
    engine = Workers(Clients(Misbehaving(), train, [np.array([0])] * 2, Streams(0), 1), 2)  # type: ignore[arg-type]
    pids = [worker.process.pid for worker in engine._workers]
    replies = engine.run(1, [Task(0, b"is well"), Task(1, b"hangs")])
    assert next(replies).answer == ClientResult(b"is well")
    del replies
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


RUN = """
import sys
from tests.conftest import small_config, small_net
import fedpm

if __name__ == "__main__":
    started = lambda record: print("ready", flush=True)
    fedpm.run(small_config(workers=2, rounds=1000, local={"epochs": 5}), net=small_net(), on_round=started)
"""


@pytest.mark.slow
def test_two_quick_interrupts_end_a_run_and_its_workers(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(RUN)
    environment = {**os.environ, "MARK": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, process_group=0,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        assert len(marked(tmp_path)) >= 3
        for _ in range(2):
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does
            time.sleep(0.02)
        _, errors = run.communicate(timeout=20)
        assert run.returncode != 0
        assert "SpawnProcess" not in errors, "Ctrl-C is for the parent alone"
    assert not marked(tmp_path, patience=10)


@pytest.mark.slow
def test_a_network_that_cannot_be_sent_to_workers_is_refused() -> None:
    class Local(Misbehaving):  # a class of a function cannot be imported elsewhere
        pass

    train = Shard(np.zeros((3, 1), np.float32), np.zeros(3, np.int64))
    with pytest.raises(EngineError, match="worker processes could not start"):
        Workers(Clients(Local(), train, [], Streams(0), 1), 2)  # type: ignore[arg-type]
