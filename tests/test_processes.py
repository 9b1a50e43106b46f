"""Processes end with the one that started them, whatever ended that: real processes, real signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpm.processes import interrupts_held, kill_group
from tests.marked import marked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system helps less: see fedpm.processes"),
]

LOAD = """
import os, signal, sys, threading
import numpy as np

signal.signal(signal.SIGINT, signal.default_int_handler)
from fedpm.wire.coders.candidates import drawn

numbers = np.full((256, 4), 0.5, np.float32)
timer = threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGINT))
timer.start()
try:
    drawn(numbers, numbers[0], np.full(4, 0.5))
    timer.join()
    threading.Event().wait(1)
except KeyboardInterrupt:
    sys.exit(3)
"""

DEAF = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
"""Hears no signal that can be ignored."""

SESSION = f"""
import subprocess, sys
started = subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
started.wait()
"""
"""Starts one that is deaf and in a session of its own, as Flower's SuperLink does."""

SUPERVISE = """
import os, sys
from fedpm.processes import supervise
sys.exit(supervise([sys.executable, "-c", sys.argv[1]], dict(os.environ), grace=0.3))
"""


@contextmanager
def started(mark: Path, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code, and wait until something in it is ready."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "MARK": str(mark)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_what_a_command_started_ends_with_its_supervisor_even_if_it_hears_no_signal(
    tmp_path: Path, number: int
) -> None:
    with started(tmp_path, SUPERVISE, SESSION) as supervisor:
        assert len(marked(tmp_path)) == 4  # the supervisor, its guard, the command, and the deaf one
        supervisor.send_signal(number)
        assert supervisor.wait(timeout=30) == (-number if number == signal.SIGKILL else 128 + number)
        assert not marked(tmp_path, patience=30)


@pytest.mark.slow
def test_what_a_command_started_ends_with_it(tmp_path: Path) -> None:
    with started(tmp_path, SUPERVISE, SESSION) as supervisor:
        lines = marked(tmp_path).items()
        [command] = [pid for pid, line in lines if "started.wait()" in line and "supervise" not in line]
        os.kill(command, signal.SIGKILL)
        assert supervisor.wait(timeout=30) == 128 + signal.SIGKILL
        assert not marked(tmp_path)


def test_what_a_command_started_ends_if_the_guard_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, SUPERVISE, "import time; print('ready', flush=True); time.sleep(600)") as supervisor:
        [guard] = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        os.kill(int(guard), signal.SIGKILL)
        assert supervisor.wait(timeout=30) == 128 + signal.SIGKILL
        assert not marked(tmp_path, patience=10)


def test_ctrl_c_reaches_the_command_once_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    polite = """
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard:
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(heard))
"""
    with started(tmp_path, SUPERVISE, polite) as supervisor:
        os.killpg(supervisor.pid, signal.SIGINT)  # as a terminal does
        assert supervisor.wait(timeout=30) == 41


@pytest.mark.slow
def test_nohup_is_respected(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + SUPERVISE
    with started(tmp_path, ignoring, "import time; print('ready', flush=True); time.sleep(600)") as supervisor:
        supervisor.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.wait(timeout=0.5)
        supervisor.terminate()
        assert supervisor.wait(timeout=30) == 128 + signal.SIGTERM


def test_a_command_that_cannot_start_is_an_exit_code(tmp_path: Path) -> None:
    nowhere = "import sys; from fedpm.processes import supervise; sys.exit(supervise(['/nowhere'], {}))"
    done = subprocess.run([sys.executable, "-c", nowhere], capture_output=True, timeout=30)
    assert done.returncode == 127


def test_a_group_is_killed_with_its_leader(tmp_path: Path) -> None:
    code = "import subprocess; print('ready', flush=True); subprocess.run(['sleep', '600'])"
    with started(tmp_path, code) as leader:
        while len(marked(tmp_path)) < 2:
            assert leader.poll() is None
        kill_group(leader)
        assert leader.returncode == -signal.SIGKILL
        assert not marked(tmp_path, patience=10)


CHILD = """
import os, sys, time
from fedpm import processes
if sys.argv[1] == "elsewhere":
    processes._prctl = lambda option, value: False
parent = os.getpid()
if os.fork() == 0:
    processes.end_with_parent(parent)
    print("ready", flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_a_process_ends_with_its_parent(tmp_path: Path, system: str) -> None:
    with started(tmp_path, CHILD, system) as parent:
        assert len(marked(tmp_path)) == 2
        parent.kill()
        parent.wait()
        assert not marked(tmp_path, patience=10)


def test_a_process_whose_parent_died_before_it_was_watched_ends_at_once() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    code = f"import time; from fedpm.processes import end_with_parent; end_with_parent({gone.pid}); time.sleep(600)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == -signal.SIGKILL


CHILDREN = """
import os, sys, time
from fedpm.children import Child

def work(pipe, seconds):
    pipe.send(os.getpid())
    time.sleep(seconds)

if __name__ == "__main__":
    children = [Child(work, 600) for _ in range(2)]
    pids = [child.receive() for child in children]
    print("ready", flush=True)
    if sys.argv[1] == "leave":
        sys.exit()  # without a word to the children
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_children_end_with_the_process_that_started_them(tmp_path: Path, end: str) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    command = [sys.executable, str(tmp_path / "children.py"), end]
    environment = {**os.environ, "MARK": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        if end == "kill":
            assert len(marked(tmp_path)) >= 3
            parent.kill()
        assert parent.wait(timeout=30) == (-signal.SIGKILL if end == "kill" else 0)
        assert not marked(tmp_path, patience=10)


def test_an_interrupt_waits_for_foreign_code_and_then_comes() -> None:
    done = []

    def foreign() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        foreign()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_no_less_heard_where_another_error_comes() -> None:
    def failing() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        failing()


def test_an_interrupt_while_compiled_code_is_loaded_is_heard() -> None:
    for delay in (0.1, 0.3):
        done = subprocess.run([sys.executable, "-c", LOAD, str(delay)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 3, done.stderr
