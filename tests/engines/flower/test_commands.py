"""What Flower's commands leave behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.flower.conftest import processes

DEAF = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
LEADER = f"""
import os, sys
from fedpm.engines.flower.deploy.commands import mind
leader = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True).wait()"
os.execve(sys.executable, [sys.executable, "-c", leader, {DEAF!r}], {{**os.environ, **mind(grace=0.5)}})
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_hears_no_signal_ends_all_the_same_with_the_command_that_started_it(tmp_path: Path, end: int) -> None:
    mark = str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, env={"MARK": mark}) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"ready\n"
        assert len(processes(mark)) == 3  # the leader, the deaf one, and the one who minds them
        leader.send_signal(end)
        assert leader.wait(timeout=30) == -end
        assert not processes(mark, patience=30)
