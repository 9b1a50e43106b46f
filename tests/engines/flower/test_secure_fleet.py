"""A secure sum on a SuperLink with four SuperNodes that sign their keys, one of them killed between the stages."""

import subprocess
from collections.abc import Iterator

import pytest
from examples.fleet import Fleet

from fedpm import config as configs
from fedpm.engines.flower.deploy.folder import init
from fedpm.experiment import api
from fedpm.model.file import Model
from tests.engines.flower.conftest import records, sets
from tests.engines.flower.test_fleet import PATIENCE, network, wait_until
from tests.engines.missing import Only

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

SECURE = ["clients.total=4", "rounds=1", "codec=secure-sum"]
OPEN = [*SECURE, "codec=side-information"]

HOOKS = '''
"""Client 3 never sends its mask: it waits to be killed."""
import os, pathlib, time
from flwr.clientapp import ClientApp
from fedpm.engines.flower import messages
from fedpm.engines.flower.deploy import client

app = ClientApp()
app.query()(client.query)

@app.train()
def train(message, context):
    request = messages.read_request(message)
    if (request.client, request.stage) == (3, 2):
        pathlib.Path(os.environ["FLWR_HOME"], "reached").touch()
        time.sleep(100_000)
    return client.train(message, context)

def network():
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
'''


class SigningFleet(Fleet):
    """Nodes that sign their round keys, and know the others by the keys that were registered."""

    def start_node(self, number: int, key: str | None = None, config: str | None = None) -> subprocess.Popen[bytes]:
        keys = f'signing-key="{self.keys}/node-{number}" signers="{self.folder}/home/fedpm-nodes.jsonl"'
        return super().start_node(number, key, f"partition-id={number} num-partitions={self.nodes} {keys}")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Iterator[Fleet]:
    with SigningFleet(tmp_path_factory.mktemp("secure"), nodes=4) as running:
        app = running.folder / "app"
        limits = ["flower.deadline=45", "flower.quorum=0.75"]
        init(app, configs.load("quickstart", [*settings, *SECURE, *limits, "privacy.secret=false"]))
        (app / "hooks.py").write_text(HOOKS)
        project = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(project.replace("fedpm.engines.flower.deploy.client:app", "hooks:app"))
        yield running


def test_a_node_that_is_killed_between_the_stages_is_left_out_of_the_sum(fleet: Fleet, settings: list[str]) -> None:
    process = fleet.start("run", "run", "app", "loopback", *sets("app.network=hooks:network", "app.out=runs/secure"))
    wait_until(lambda: (fleet.folder / "home/reached").exists() or process.poll() is not None)
    fleet.processes.pop("node-3").kill()
    assert process.wait(timeout=2 * PATIENCE) == 0, (fleet.folder / "run.log").read_text()
    [record] = records(fleet.folder / "runs/secure")
    assert list(record["rejected"]) == ["3"]
    assert sum(record["faults"].values()) == 1
    start = configs.load("quickstart", [*settings, *OPEN])
    plain = api.run(start, net=network(), start=lambda made: Only(made, {(1, 3)}))
    model = Model.from_bytes((fleet.folder / "runs/secure/model.fedpm").read_bytes())
    assert model.coded_mask == plain.file.coded_mask
    assert record["accuracy"] == plain.rounds[0]["accuracy"]
    alone = api.run(
        configs.load("quickstart", [*settings, *SECURE]), net=network(), start=lambda made: Only(made, {(1, 3, 2)})
    )
    for key in ("uplink_bytes", "downlink_bytes"):
        assert record[key] == alone.rounds[0][key]
