"""``fedpm run --engine flower`` on a Ray cluster: a head that computes nothing, and two nodes with an actor each."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpm import config as configs
from fedpm.engines.flower.environment import LOOPBACK
from fedpm.experiment import api
from fedpm.experiment.build import Experiment
from tests.command import FEDPM
from tests.engines.flower.conftest import records, sets, timeless
from tests.engines.missing import Only
from tests.marked import listening, marked

pytest.importorskip("ray", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

CLUSTER = """
import os, signal, sys, time
from ray.cluster_utils import Cluster

small = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True, "object_store_memory": 10**8}
small["node_ip_address"] = "127.0.0.1"
cluster = Cluster(True, head_node_args={"num_cpus": 0, **small})
nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
print(cluster.address, flush=True)
for line in sys.stdin:
    (raylet,) = nodes[-1].all_processes["raylet"]
    with open(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children") as children:
        pids = [int(pid) for pid in children.read().split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that it cannot answer before it is lost
    time.sleep(0.5)
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
cluster.shutdown()
"""
PATIENCE = 600.0
"""Seconds after which a test has failed, on the busiest machine."""


@dataclass(frozen=True)
class Cluster:
    process: subprocess.Popen[str]
    folder: Path
    environment: dict[str, str]

    def lose_a_node(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def start(self, out: Path, *settings: str) -> subprocess.Popen[str]:
        command = [FEDPM, "run", "--preset", "quickstart", *sets(*settings), "--engine", "flower", "--out", str(out)]
        return subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with files of its own, at a short path: Ray names sockets there."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        environment = {**os.environ, **LOOPBACK, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "MARK": folder}
        with subprocess.Popen(
            [sys.executable, "-c", CLUSTER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("127.0.0.1:")
            yield Cluster(process, Path(folder), {**environment, "RAY_ADDRESS": address})
            process.stdin.close()
            process.wait(timeout=PATIENCE)
        assert not marked(Path(folder), patience=30), "no process outlives the cluster"


def test_a_cluster_trains_the_same_model_without_the_client_of_a_node_that_is_lost(
    cluster: Cluster, settings: list[str], tmp_path: Path
) -> None:
    settings = [*settings, "rounds=2", "model.name=conv4-slim", f"flower.deadline={PATIENCE}", "local.epochs=80"]
    log = tmp_path / "run/rounds.jsonl"
    with cluster.start(tmp_path / "run", *settings) as process:
        while not (log.exists() and log.read_text()) and process.poll() is None:
            time.sleep(0.05)
        cluster.lose_a_node()
        addresses = listening(cluster.folder)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert not [str(address) for address in addresses if not address.is_loopback]
    first, second = records(tmp_path / "run")
    assert (first["faults"], second["faults"]) == ({}, {"crashed": 1})
    lost = {(2, int(client)) for client in second["rejected"]}

    def without(run: Experiment) -> Only:
        return Only(run, lost)

    alone = api.run(configs.load("quickstart", [*settings, "workers=1"]), start=without)
    assert (tmp_path / "run/model.fedpm").read_bytes() == alone.file.to_bytes()
    assert timeless([first]) == timeless(alone.rounds[:1])
