"""A SuperLink and three SuperNodes as real processes on 127.0.0.1, with TLS and node authentication.

One fleet for all tests, which are parts of a story, because its start takes longest: a run whose server is killed, its
continuation, a secure sum in which a node is killed, the fleet's end. The third node, registered for none, claims all.
"""

import os
import shutil
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
from fedpm.experiment.build import Experiment
from tests.engines.flower.conftest import records, sets
from tests.engines.missing import Only
from tests.marked import marked, open_files

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
httpx = pytest.importorskip("httpx")  # comes with Flower
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from fedpm.engines.flower.deploy import certificates  # noqa: E402

FAULTY = '''
"""What goes wrong, by run, client, round and stage.

Open run: client 1 exits in its work in round 1, and never ends it in round 3. Secure sums: client 1 never sends its
mask and waits to be killed, and in round 2 no work ever ends.
"""
import os, pathlib, time
from flwr.clientapp import ClientApp
from fedpm.engines.flower import messages
from fedpm.engines.flower.deploy import client

app = ClientApp()
app.query()(client.query)

@app.train()
def train(message, context):
    request = messages.read_request(message)
    secure = context.run_config["codec"] == "secure-sum"
    os.environ["WORK"] = f"{'secure' if secure else 'open'} {request.client} {request.round}"
    if secure and (request.client, request.stage) == (1, 2):
        pathlib.Path(os.environ["FLWR_HOME"], "reached").touch()
        time.sleep(100_000)
    if secure and request.round == 2:
        client.supervised(context, request, messages.recall(context), 100_000.0)
    return client.train(message, context)

def network():
    work = os.environ.get("WORK", "")
    if work == "open 1 1":
        os._exit(7)
    if work == "open 1 3" or (work.startswith("secure") and work.endswith(" 2")):
        time.sleep(100_000)
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
'''
SECURE = ["clients.total=3", "rounds=2", "codec=secure-sum"]
OPEN = [*SECURE, "codec=side-information"]
GONE = 1
"""The client of the secure sum whose node is killed; the first node hosts the other two."""


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


class FleetWithLiar(Fleet):
    """Two nodes that sign their round keys and know each other's, and a third which claims all clients."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes)
        self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.3"  # each look for work costs four processes time

    def register(self, node: int, partition: str | None = None) -> subprocess.Popen[bytes]:
        return super().register(node, partition or ("8/9" if node == 2 else f"{node}/2"))

    def start_node(self, number: int, key: str | None = None, config: str | None = None) -> subprocess.Popen[bytes]:
        own = "partition-id=0 num-partitions=1" if number == 2 else f"partition-id={number} num-partitions=2"
        keys = f'signing-key="{self.keys}/node-{number}" signers="{self.folder}/home/fedpm-nodes.jsonl"'
        return super().start_node(number, key, config or f"{own} {keys}")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Iterator[Fleet]:
    """SuperLink, gate and nodes, and an app for them."""
    with FleetWithLiar(tmp_path_factory.mktemp("fleet"), nodes=3) as running:
        app = running.folder / "faulty"
        init(app, configs.load("quickstart", [*settings, "privacy.secret=false"]))
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
        if "flwr-serverapp" in line and str(folder / ".lock") in open_files(pid):  # not that of the refused run
            os.kill(pid, signal.SIGKILL)
    fleet.processes.pop("killed").kill()
    process.wait()
    return folder


@pytest.fixture(scope="module")
def continued(fleet: Fleet, killed: Path) -> str:
    """What the same run says when it is started again, with other settings that change no result.

    While its third round waits for a client that never answers, the secure sum begins, and comes to wait too.
    """
    deadline = max(10.0, 1.5 * records(killed)[0]["seconds"])  # as fast as this machine is now, and a bit
    process = fleet.start("run", *run(), *sets(f"flower.deadline={deadline}", "tensorboard=true"))
    wait_until(lambda: len(records(killed)) > 1 or process.poll() is not None)
    limits = sets(f"flower.deadline={deadline}", "flower.quorum=0.6")
    secure = fleet.start("secure", *run(out="runs/secure"), *sets(*SECURE), *limits)
    wait_until(lambda: (fleet.folder / "home/reached").exists() or secure.poll() is not None)
    fleet.processes.pop("node-1").kill()  # with work of both runs under way
    log = fleet.folder / "run.log"
    assert process.wait(timeout=PATIENCE) == 0, log.read_text()
    return log.read_text()


@pytest.fixture(scope="module")
def stranger(fleet: Fleet, continued: str, tmp_path_factory: pytest.TempPathFactory) -> subprocess.Popen[bytes]:
    """A node whose key nobody registered."""
    keys = tmp_path_factory.mktemp("stranger") / "keys"
    certificates.make(keys, ["localhost"], nodes=1, days=1)
    return fleet.start_node(9, key=str(keys / "node-0"), config="partition-id=0 num-partitions=2")


def test_a_run_that_fails_says_why_and_ends_with_exit_code_one(refused: subprocess.Popen[str], killed: Path) -> None:
    _, errors = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 1
    assert errors.startswith("fedpm: run ")
    assert "finished:failed" in errors
    assert "app.network = 'nowhere:network': there is no module nowhere here" in errors


def test_a_killed_server_is_continued_by_a_new_run(continued: str, stranger: object) -> None:
    assert "continuing the run in" in continued
    assert "round 1/3" not in continued
    assert "round 3/3  accuracy" in continued


def test_the_round_goes_on_without_clients_that_exit_or_never_answer(killed: Path, continued: str) -> None:
    first, second, third = (
        {kind: count for kind, count in record["faults"].items() if kind != "wrong node"} for record in records(killed)
    )
    assert (first, second, third) == ({"crashed": 1}, {}, {"silent": 1})
    assert records(killed)[0]["rejected"]["1"].startswith("the client's process ended with code 7")


def test_a_node_cannot_answer_for_clients_of_others(killed: Path, continued: str) -> None:
    assert "claims clients [0, 1], but its key is registered for none: it is left out" in continued
    assert sum(record["faults"].get("wrong node", 0) for record in records(killed)[1:]) == 2


def test_the_fleet_ends_in_the_same_model(killed: Path, continued: str, settings: list[str]) -> None:
    lost = {(1, 1), (3, 1)}
    alone = api.run(configs.load("quickstart", settings), net=network(), start=without(*lost))
    assert (killed / "model.fedpm").read_bytes() == alone.file.to_bytes()
    pairs = list(zip(records(killed), alone.rounds, strict=True))
    for key in ("accuracy", "loss", "uplink_bytes"):
        assert all(record[key] == other[key] for record, other in pairs), key
    more = [record["downlink_bytes"] - other["downlink_bytes"] for record, other in pairs]
    assert (more[0], more[1] > 0, more[2]) == (0, True, 0), "only a new server has to send what nodes remembered"


def test_a_node_with_a_key_that_is_not_registered_is_refused(fleet: Fleet, stranger: subprocess.Popen[bytes]) -> None:
    assert stranger.wait(timeout=PATIENCE) != 0
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


def test_a_node_that_is_killed_between_the_stages_is_left_out_of_the_sum(
    fleet: Fleet, continued: str, settings: list[str]
) -> None:
    folder, process = fleet.folder / "runs/secure", fleet.processes["secure"]
    checkpoint = folder / "checkpoint/state.safetensors"
    wait_until(lambda: checkpoint.exists() or process.poll() is not None)
    assert process.poll() is None, (fleet.folder / "secure.log").read_text()
    [record] = records(folder)
    # one that is silent, or crashed if the SuperLink has missed its heartbeats by then
    assert sum(count for kind, count in record["faults"].items() if kind != "wrong node") == 1
    plain, alone = (
        api.run(configs.load("quickstart", [*settings, *chosen, "rounds=1"]), net=network(), start=without(lost))
        for chosen, lost in ((OPEN, (1, GONE)), (SECURE, (1, GONE, 2)))
    )
    copy = shutil.copytree(folder, fleet.folder / "runs/copy")  # the run goes on in the folder itself
    model = api.resume(copy, rounds=1, net=network(), start=without()).file
    assert model.coded_mask == plain.file.coded_mask
    assert record["accuracy"] == plain.rounds[0]["accuracy"]
    for key in ("uplink_bytes", "downlink_bytes"):
        assert record[key] == alone.rounds[0][key]


def without(*lost: tuple[int, ...]) -> Callable[[Experiment], Only]:
    return lambda experiment: Only(experiment, lost)


def test_a_forgotten_node_fails_and_nothing_is_left_of_a_killed_fleet(fleet: Fleet, continued: str) -> None:
    # each node has a process that forks, and one that works three forks more: app, guard of the work, and the work
    assert fleet.processes["secure"].poll() is None, "the work is that of its second round"
    wait_until(lambda: sum("deploy.preloaded" in line for line in marked(fleet.folder).values()) >= 2 + 3)
    killed = dict.fromkeys(("secure", "superlink"), signal.SIGKILL)
    assert end(fleet, {**killed, "node-0": signal.SIGINT})["node-0"] == 0
    fleet.start_superlink("--database", "new.db")  # without the keys that were registered
    node = fleet.processes.pop("node-2")
    assert node.wait(timeout=PATIENCE) == 1, "so that a service manager starts it again"
    assert "fedpm: the SuperNode has ended by itself: " in (fleet.folder / "node-2.log").read_text()
    assert {file.stat().st_mode & 0o777 for file in fleet.folder.glob("new.db*")} == {0o600}
    end(fleet, {"superlink": signal.SIGTERM, "gate": signal.SIGTERM})
    assert not marked(fleet.folder, patience=60)


def end(fleet: Fleet, signals: dict[str, signal.Signals]) -> dict[str, int]:
    """Send processes a signal each, and return their exit codes."""
    for name, number in signals.items():
        fleet.processes[name].send_signal(number)
    return {name: fleet.processes.pop(name).wait(timeout=60) for name in signals}
