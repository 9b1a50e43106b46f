"""A SuperLink and two SuperNodes as real processes on 127.0.0.1, with TLS and node authentication."""

import importlib.util
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.fleet import FEDPM, Fleet

from fedpm import config as configs
from fedpm.engines.base import Fault, Task
from fedpm.engines.inprocess import Sequential
from fedpm.experiment import loop as rounds
from fedpm.experiment.build import Experiment
from fedpm.methods.base import ClientResult
from tests.conftest import small_net
from tests.engines.flower.conftest import lines, sets

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
httpx = pytest.importorskip("httpx")  # comes with Flower
pytestmark = [pytest.mark.flower, pytest.mark.slow]

FAULTY = '''
"""Client 1 exits in its work, client 2 sends garbage, and client 3 never answers."""
import os, time
from flwr.clientapp import ClientApp
from torch import nn
from fedpm.engines.flower import records
from fedpm.engines.flower.work import Answer
from fedpm.engines.flower.deploy import client

app = ClientApp()
app.query()(client.query)

@app.train()
def train(message, context):
    request = records.read_request(message)
    os.environ["FAULT"] = str(request.client)
    if request.client == 2:
        return records.reply(message, Answer(payload=b"garbage" * 100))
    return client.train(message, context)

def network():
    if os.environ.get("FAULT") == "1":
        os._exit(7)
    if os.environ.get("FAULT") == "3":
        time.sleep(100_000)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
'''


@pytest.fixture(scope="module")
def parity(fleet: Fleet, settings: list[str]) -> Path:
    """The run folder of the fleet, of the same settings as the embedded engine's."""
    assert fleet.fedpm("init", "parity", *sets(*settings)).returncode == 0
    done = fleet.fedpm("run", "parity", "loopback", "--set", "app.out=runs/parity")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 3/3  accuracy" in done.stdout
    return fleet.folder / "runs/parity"


def test_the_fleet_ends_in_the_same_model(parity: Path, inprocess: Path) -> None:
    assert (parity / "model.fedpm").read_bytes() == (inprocess / "model.fedpm").read_bytes()
    assert lines(parity) == lines(inprocess)


def test_a_run_that_fails_says_why_and_ends_with_exit_code_one(parity: Path, fleet: Fleet) -> None:
    done = fleet.fedpm("run", "parity", "loopback", "--set", "app.out=runs/parity", "--set", "rounds=4")
    assert done.returncode == 1
    assert done.stderr.startswith("fedpm: run ")
    assert "finished:failed" in done.stderr
    assert "holds a run with other settings (rounds)" in done.stderr


class Heard:
    """The embedded engine, to which clients 1, 2 and 3 are lost."""

    def __init__(self, experiment: Experiment) -> None:
        self.inner = Sequential(experiment.clients)

    def run(self, round: int, tasks: list[Task]) -> Iterator[tuple[int, ClientResult | Fault]]:
        for task in tasks:
            if task.client:
                yield task.client, Fault("lost", "")
            else:
                yield from self.inner.run(round, [task])

    def close(self) -> None:
        pass


def test_the_round_goes_on_without_clients_that_exit_send_garbage_or_never_answer(
    fleet: Fleet, settings: list[str]
) -> None:
    start = time.monotonic()
    assert fleet.fedpm("init", "how-busy-this-machine-is").returncode == 0
    deadline = max(20.0, 60 * (time.monotonic() - start))  # for a node that does two clients' work, one after another
    chosen = [*settings, "rounds=1", "flower.quorum=0.25", f"flower.deadline={deadline}"]
    assert fleet.fedpm("init", "faulty", *sets(*chosen)).returncode == 0
    app = fleet.folder / "faulty"
    (app / "faulty.py").write_text(FAULTY)
    project = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(project.replace("fedpm.engines.flower.deploy.client:app", "faulty:app"))
    done = fleet.fedpm("run", "faulty", "loopback", "--set", "app.network=faulty:network", "--set", "app.out=runs/f")
    assert done.returncode == 0, done.stdout + done.stderr
    first = json.loads((fleet.folder / "runs/f/rounds.jsonl").read_text())
    assert first["faults"] == {"crashed": 1, "garbage": 1, "silent": 1}
    assert "ended with code 7" in first["rejected"]["1"]
    reference = rounds.run(configs.load("quickstart", chosen), net=small_net(), start=Heard)
    assert (fleet.folder / "runs/f/model.fedpm").read_bytes() == reference.file.to_bytes()


def test_a_killed_server_is_continued_by_a_new_run(fleet: Fleet, settings: list[str]) -> None:
    chosen = [*settings, "rounds=2", "clients.total=2"]
    assert fleet.fedpm("init", "killed", *sets(*chosen)).returncode == 0
    with subprocess.Popen(
        [FEDPM, "flower", "run", "killed", "loopback", *sets("app.network=model:network")],
        cwd=fleet.folder, env=fleet.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as watching:  # fmt: skip
        done = fleet.folder / "runs/killed/checkpoint/state.safetensors"
        end = time.monotonic() + 240
        while not done.exists():
            assert time.monotonic() < end
            assert watching.poll() is None
            time.sleep(0.05)
        [server] = _pids("flwr-serverapp", str(fleet.folder))
        os.kill(server, signal.SIGKILL)
        watching.kill()
    again = fleet.fedpm("run", "killed", "loopback", *sets("app.network=model:network"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "continuing the run in" in again.stdout
    assert "round 1/2" not in again.stdout
    spec = importlib.util.spec_from_file_location("model", fleet.folder / "killed/model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reference = rounds.run(configs.load("quickstart", chosen), net=module.network())
    assert (fleet.folder / "runs/killed/model.fedpm").read_bytes() == reference.file.to_bytes()


def _pids(command: str, mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (
                command.encode() in (place / "cmdline").read_bytes()
                and mark.encode() in (place / "environ").read_bytes()
            ):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def test_a_node_with_a_key_that_is_not_registered_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.fedpm("certificates", str(tmp_path / "other"), "--nodes", "1").returncode == 0
    node = fleet.start_node(9, key=str(tmp_path / "other/node-0"), config="partition-id=0 num-partitions=2")
    assert node.wait(timeout=60) != 0
    fleet.processes.pop("node-9")
    assert "Failed to initialize the connection to the SuperLink" in (fleet.folder / "node-9.log").read_text()


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/fleet/..%2fcontrol%2flist-runs", "/v1/runtime/x", "/"])
def test_the_gate_lets_calls_of_nodes_through_and_no_others(fleet: Fleet, path: str) -> None:
    trusted = ssl.create_default_context(cafile=fleet.keys / "ca.pem")
    with httpx.Client(verify=trusted, trust_env=False) as client:
        inside, outside = (f"https://127.0.0.1:{port}" for port in (fleet.port, fleet.gate))
        assert client.post(outside + path).status_code == 404
        assert client.post(inside + "/v1/control/list-runs").status_code != 404
        answers = [client.post(place + "/v1/fleet/pull-messages") for place in (inside, outside)]
        assert answers[0].status_code == answers[1].status_code != 404
        assert answers[0].content == answers[1].content
