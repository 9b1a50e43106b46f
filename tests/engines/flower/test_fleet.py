"""A SuperLink and two SuperNodes as real processes on 127.0.0.1, with TLS and node authentication.

One fleet for all tests, which are parts of a story: a run whose server is killed, its continuation, the fleet's end.
"""

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from examples.fleet import FEDPM, Fleet
from torch import nn

from fedpm import config as configs
from fedpm.engines.flower.deploy.folder import init
from fedpm.experiment import api
from tests.engines.flower.conftest import records, sets
from tests.engines.flower.test_grid import Only
from tests.marked import marked

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
httpx = pytest.importorskip("httpx")  # comes with Flower
pytestmark = [pytest.mark.flower, pytest.mark.slow]

FAULTY = '''
"""Client 1 exits in its work in round 1, and never ends it in round 3."""
import os, time
from flwr.clientapp import ClientApp
from fedpm.engines.flower import messages
from fedpm.engines.flower.deploy import client

app = ClientApp()
app.query()(client.query)

@app.train()
def train(message, context):
    request = messages.read_request(message)
    os.environ["WORK"] = f"client {request.client}, round {request.round}"
    return client.train(message, context)

def network():
    if os.environ.get("WORK") == "client 1, round 1":
        os._exit(7)
    if os.environ.get("WORK") == "client 1, round 3":
        time.sleep(100_000)
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def endless():
    if "WORK" in os.environ:
        time.sleep(100_000)
    return network()
'''


def run(hook: str = "faulty:network", out: str = "runs/faulty") -> list[str]:
    return ["run", "faulty", "loopback", *sets(f"app.network={hook}", f"app.out={out}")]


PATIENCE = 240.0
"""Seconds after which a test has failed, on the busiest machine."""


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Iterator[Fleet]:
    """SuperLink, gate and two nodes, and an app for them."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as running:
        app = running.folder / "faulty"
        init(app, configs.load("quickstart", settings))
        (app / "faulty.py").write_text(FAULTY)
        project = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(project.replace("fedpm.engines.flower.deploy.client:app", "faulty:app"))
        yield running


@pytest.fixture(scope="module")
def refused(fleet: Fleet) -> Iterator[subprocess.Popen[str]]:
    """A run with a fault in its settings, while another one goes on."""
    command = [FEDPM, "flower", *run("nowhere:network", "runs/refused")]
    with subprocess.Popen(
        command, cwd=fleet.folder, env=fleet.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.fixture(scope="module")
def killed(fleet: Fleet, refused: subprocess.Popen[str]) -> Path:
    """The folder of a run whose server was killed after the first round."""
    process, folder = fleet.start("killed", *run()), fleet.folder / "runs/faulty"
    checkpoint = folder / "checkpoint/state.safetensors"
    wait_until(lambda: checkpoint.exists() or process.poll() is not None)
    for pid, line in marked(fleet.folder).items():
        if "flwr-serverapp" in line:
            os.kill(pid, signal.SIGKILL)
    fleet.processes.pop("killed").kill()
    process.wait()
    return folder


@pytest.fixture(scope="module")
def continued(fleet: Fleet, killed: Path) -> str:
    """What the same run says when it is started again, with other settings that change no result.

    While its third round waits for a client that never answers, a run is started whose clients all never answer.
    """
    deadline = max(10.0, 1.25 * records(killed)[0]["seconds"])  # as fast as this machine is now
    process = fleet.start("run", *run(), *sets(f"flower.deadline={deadline}", "tensorboard=true"))
    wait_until(lambda: len(records(killed)) > 1 or process.poll() is not None)
    fleet.start("endless", *run("faulty:endless", "runs/endless"))
    log = fleet.folder / "run.log"
    assert process.wait(timeout=PATIENCE) == 0, log.read_text()
    return log.read_text()


def test_a_run_that_fails_says_why_and_ends_with_exit_code_one(refused: subprocess.Popen[str], killed: Path) -> None:
    _, errors = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 1
    assert errors.startswith("fedpm: run ")
    assert "finished:failed" in errors
    assert "app.network = 'nowhere:network': should be MODULE:FUNCTION in the app folder" in errors


def test_a_killed_server_is_continued_by_a_new_run(continued: str) -> None:
    assert "continuing the run in" in continued
    assert "round 1/3" not in continued
    assert "round 3/3  accuracy" in continued


def test_the_round_goes_on_without_clients_that_exit_or_never_answer(killed: Path, continued: str) -> None:
    first, second, third = records(killed)
    assert (first["faults"], second["faults"], third["faults"]) == ({"crashed": 1}, {}, {"silent": 1})
    assert first["rejected"] == {"1": "the client's process ended with code 7"}


def test_the_fleet_ends_in_the_same_model(killed: Path, continued: str, settings: list[str]) -> None:
    lost = {(1, 1), (3, 1)}
    alone = api.run(configs.load("quickstart", settings), net=network(), start=lambda run: Only(run, lost))
    assert (killed / "model.fedpm").read_bytes() == alone.file.to_bytes()
    pairs = list(zip(records(killed), alone.rounds, strict=True))
    for key in ("accuracy", "loss", "uplink_bytes"):
        assert all(record[key] == other[key] for record, other in pairs), key
    more = [record["downlink_bytes"] - other["downlink_bytes"] for record, other in pairs]
    assert (more[0], more[1] > 0, more[2]) == (0, True, 0), "only a new server has to send what nodes remembered"


def test_a_node_with_a_key_that_is_not_registered_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.fedpm("certificates", str(tmp_path / "other"), "--nodes", "1").returncode == 0
    node = fleet.start_node(9, key=str(tmp_path / "other/node-0"), config="partition-id=0 num-partitions=2")
    assert node.wait(timeout=PATIENCE) != 0
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


def test_nothing_is_left_of_a_fleet_that_is_killed_in_its_work(fleet: Fleet, continued: str) -> None:
    wait_until(lambda: sum("deploy.worker" in line for line in marked(fleet.folder).values()) == 2)
    ends = {"superlink": signal.SIGKILL, "node-0": signal.SIGKILL, "node-1": signal.SIGINT, "gate": signal.SIGTERM}
    for name in ("endless", *ends):
        fleet.processes[name].send_signal(ends.get(name, signal.SIGKILL))
    for name in ("endless", *ends):
        fleet.processes.pop(name).wait(timeout=60)
    assert not marked(fleet.folder, patience=60)
