"""One contract for every engine: the same replies, in order."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedpm
from fedpm import children
from fedpm.data.datasets import Dataset
from fedpm.engines import inprocess
from fedpm.engines.base import Clients, Start, Task
from fedpm.engines.inprocess import Growing, Sequential, Workers, replied
from fedpm.errors import EngineError, FedPMError
from fedpm.experiment.build import build
from fedpm.methods.base import ClientResult
from fedpm.training.losses import cross_entropy
from tests.engines.misbehaving import Fatal, Misbehaving
from tests.engines.several import Several
from tests.marked import marked
from tests.small import small_config, small_net


@pytest.mark.slow
def test_worker_processes_give_the_replies_of_a_single_one(data: Dataset) -> None:
    made = [build(small_config(model={"weights": kind}), net=small_net(), data=data) for kind in ("random", "given")]
    several = Several([experiment.clients for experiment in made], each=4)
    broadcasts = [experiment.method.broadcast(experiment.method.init()).payload for experiment in made]
    workers = Workers(several.as_one(), 2)
    try:
        for chosen in ([0, 1, 2, 3], [2, 3], [1], [4, 5, 6, 7], [6, 7], [5]):
            tasks = [Task(client, broadcasts[client // 4]) for client in chosen]
            expected = list(Sequential(several.as_one()).run(1, tasks))
            assert [reply.client for reply in expected] == chosen
            assert list(workers.run(1, tasks)) == expected
    finally:
        workers.close()


LARGE = bytes(10**6)
"""More than a pipe holds."""


def misbehaving(*modes: object) -> Clients:
    return Misbehaving(modes)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers(misbehaving(), 2)
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


@contextmanager
def no_hang(workers: Workers) -> Iterator[None]:
    """Let a test fail, rather than hang, if a worker blocks it."""
    timer = threading.Timer(60, lambda: workers.close())
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="nobody can stop a process here")
def test_a_worker_that_was_stopped_is_continued(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "TICK", 0.1)  # from the second look on
    for worker in workers._workers:
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
    tasks = [Task(client, LARGE) for client in range(3)]
    with no_hang(workers):
        assert list(workers.run(2, tasks)) == [replied(task, ClientResult(LARGE)) for task in tasks]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells how much a process computed")
def test_a_worker_that_does_nothing_is_given_up_and_one_that_computes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "TICK", 0.1)
    workers = Workers(misbehaving(), 1)
    [worker] = workers._workers
    assert worker._patience == 600
    worker._patience = 1.0
    time.sleep(1.5)  # one that owes nothing may rest
    with no_hang(workers):
        assert len(list(workers.run(1, [Task(0, b"computes")]))) == 1
        replies = workers.run(1, [Task(0, LARGE), Task(1, LARGE)])
        assert next(replies).client == 0
        time.sleep(2)  # meanwhile the second reply waits to be read
        assert next(replies).client == 1
        with pytest.raises(EngineError, match=f"process {worker.process.pid} did nothing for 1 s .*resume"):
            list(workers.run(2, [Task(0, b"hangs")]))


@pytest.mark.slow
def test_workers_that_die_at_the_start_end_the_run() -> None:
    with pytest.raises(EngineError, match=r"could not start \(its process ended with code 3\)"):
        Workers(misbehaving(Fatal()), 1)


@pytest.mark.slow
def test_workers_start_once_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Task(client, bytes([client])) for client in range(3)]
    expected = [replied(task, ClientResult(task.broadcast)) for task in tasks]
    engine = inprocess.start(misbehaving(), Start(clients=3, per_round=3, rounds=2, workers=2, at_leisure=True))
    assert isinstance(engine, Growing)
    try:
        assert list(engine.run(1, tasks)) == expected
        assert engine._workers is None
        monkeypatch.setattr(inprocess, "START", 0.0)
        assert list(engine.run(2, tasks)) == expected
        assert engine._workers is not None
        pids = [worker.process.pid for worker in engine._workers._workers]
    finally:
        engine.close()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


class Ready:
    """A client between two stages that has nothing to do."""

    def answer(self, message: bytes) -> ClientResult:
        return ClientResult(message[::-1])


def test_later_stages_say_nothing_about_what_workers_are_worth() -> None:
    engine = Growing(misbehaving(), Start(clients=3, per_round=1, rounds=1, workers=2, at_leisure=True))
    engine._quickest = 5.0
    task = Task(0, b"ab", stage=1, waiting=Ready())
    assert list(engine.run(1, [task])) == [replied(task, ClientResult(b"ba"))]
    assert engine._quickest == 5.0


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_no_hang(workers: Workers) -> None:
    tasks = [Task(0, LARGE), Task(1, b"dies"), Task(2, LARGE)]
    with pytest.raises(EngineError, match=r"worker process ended unexpectedly \(its process ended with code -9\)"):
        list(workers.run(3, tasks))


@pytest.mark.slow
def test_a_round_that_is_broken_off_leaves_no_worker_behind() -> None:
    engine = Workers(misbehaving(), 2)
    pids = [worker.process.pid for worker in engine._workers]
    replies = engine.run(1, [Task(0, b"is well"), Task(1, b"hangs")])
    assert next(replies).answer == ClientResult(b"is well")
    del replies
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


WITH_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
"""The environment of a process that imports what this one does."""

RUN = """
import sys
from tests.small import small_config, small_net
import fedpm

if __name__ == "__main__":
    started = lambda record: print("ready", flush=True)
    fedpm.run(small_config(workers=2, rounds=1000, local={"epochs": 5}), net=small_net(), on_round=started)
"""


@pytest.mark.slow
def test_two_quick_interrupts_end_a_run_and_its_workers(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(RUN)
    environment = {**WITH_TESTS, "MARK": str(tmp_path)}
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
        assert "Process-" not in errors, "Ctrl-C is for the parent alone"
    assert not marked(tmp_path, patience=10)


@pytest.mark.slow
def test_a_network_that_cannot_be_sent_to_workers_is_refused() -> None:
    class Local:  # a class of a function cannot be imported elsewhere
        pass

    with pytest.raises(EngineError, match="worker processes could not start"):
        Workers(misbehaving(Local()), 1)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"loss": lambda output, target: cross_entropy(output, target)}, "your loss"),
        ({"metrics": [lambda output, target: cross_entropy(output, target)]}, "your metrics"),
    ],
)
def test_what_cannot_be_sent_to_workers_is_named(given: dict[str, Any], what: str, data: Dataset) -> None:
    with pytest.raises(EngineError, match=rf"could not start \(.*\): {what} should be importable from a module"):
        fedpm.run(small_config(workers=2), net=small_net(), data=data, **given)


SCRIPT = """
import fedpm
from tests.small import small_config, small_net

class Own(type(small_net())):
    pass

def make():
    return Own(*small_net())

print("top level", flush=True)
"""
RUNS = """
result = fedpm.run(small_config(workers=2, rounds=1), net={net}(), weights="random")
again = fedpm.run(small_config(workers=1, rounds=1), net={net}(), weights="random")
print("done", again.file == result.file, flush=True)
"""


def python(*arguments: str, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], input=script, capture_output=True, text=True, cwd=folder, timeout=120,
        env=WITH_TESTS,
    )  # fmt: skip


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + RUNS.format(net="make"))
    done = python("script.py", script="", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "top level\n" * 3 + "done True\n"


@pytest.mark.slow
def test_a_piped_script_needs_no_guard_but_a_network_that_workers_can_import(tmp_path: Path) -> None:
    done = python(script=SCRIPT + RUNS.format(net="small_net") + RUNS.format(net="make"), folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "top level\n" + "done True\n"
    assert done.stderr.startswith("Traceback")
    assert done.stderr.count("Traceback") == 1
    assert "Can't get attribute 'Own'" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].endswith("or use workers=1")
