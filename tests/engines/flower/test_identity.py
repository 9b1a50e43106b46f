"""Round keys of a fleet's secure sums are signed by the nodes' own keys."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = pytest.mark.flower

from fedpm.engines.base import Clients, Reply, Task  # noqa: E402
from fedpm.engines.flower.deploy import certificates  # noqa: E402
from fedpm.engines.flower.deploy.identity import signing  # noqa: E402
from fedpm.engines.inprocess import Sequential  # noqa: E402
from fedpm.errors import ConfigError, WireError  # noqa: E402
from fedpm.experiment.build import Experiment, build  # noqa: E402
from fedpm.experiment.round import Exchange  # noqa: E402
from fedpm.methods.mask.secured import SecureFedPM  # noqa: E402
from tests.small import small_config, small_net  # noqa: E402


@pytest.fixture(scope="module")
def made() -> Experiment:
    return build(small_config(codec="secure-sum", clients={"total": 3}, rounds=1, local={"epochs": 1}), net=small_net())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three nodes, a client each, and the table of their keys (that it is written so, tests a fleet)."""
    certificates.make(tmp_path / "keys", ["localhost"], nodes=3, days=1)
    public = [(tmp_path / f"keys/node-{number}.pub").read_text().strip() for number in range(3)]
    lines = [{"node": n, "partition": n, "partitions": 3, "public": key} for n, key in enumerate(public)]
    (tmp_path / "fedpm-nodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def node(home: Path, number: int, **other: str) -> dict[str, Any]:
    return {"signing-key": f"{home}/keys/node-{number}", "signers": f"{home}/fedpm-nodes.jsonl", **other}


def place(made: Experiment, home: Path, number: int) -> Clients:
    return signing(made.clients, node(home, number))


def first(made: Experiment) -> bytes:
    return made.method.broadcast(made.method.init()).payload


class Fleet(Sequential):
    """Each client at a node of its own, which knows its own key alone."""

    def __init__(self, places: list[Clients]) -> None:
        self.places = places

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        for task in tasks:
            yield from Sequential(self.places[task.client]).run(round, [task])


def test_nodes_that_sign_sum_and_a_server_that_poses_as_one_is_found_out(made: Experiment, home: Path) -> None:
    method = made.method
    assert isinstance(method, SecureFedPM)
    tasks = [Task(client, first(made)) for client in range(3)]
    honest = Fleet([place(made, home, number) for number in range(3)])
    [summed] = Exchange([0, 1, 2]).staged(method.stages(method.init()), honest, 1, tasks)
    assert summed.clients == (0, 1, 2)
    for posing in (place(made, home, 2), made.clients):  # by the key of another node, or by none
        wrong = Fleet([honest.places[0], posing, honest.places[2]])
        with pytest.raises(WireError, match="keys of client 1 are not signed by its node"):
            list(Exchange([0, 1, 2]).staged(method.stages(method.init()), wrong, 1, tasks))


def test_a_node_that_was_never_registered_is_unknown(made: Experiment, home: Path) -> None:
    table = home / "fedpm-nodes.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    del lines[1]["public"]  # of an older release
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    method, places = made.method, [place(made, home, number) for number in range(3)]
    assert isinstance(method, SecureFedPM)
    tasks = [Task(client, first(made)) for client in range(3)]
    with pytest.raises(WireError, match="no key of the node of client 1 is known here"):
        list(Exchange([0, 1, 2]).staged(method.stages(method.init()), Fleet(places), 1, tasks))


def test_nothing_is_signed_where_nothing_is_said_or_summed(made: Experiment, home: Path) -> None:
    assert signing(made.clients, {"partition-id": 0}) is made.clients
    plain = build(small_config(clients={"total": 3}), net=small_net()).clients
    assert signing(plain, node(home, 0)) is plain


def test_keys_that_cannot_be_used_are_named(made: Experiment, home: Path) -> None:
    (home / "damaged.jsonl").write_text('{"node": 1, "partition": 0, "partitions": 1, "public": "no key"}\n')
    for config, said in (
        ({"signers": f"{home}/fedpm-nodes.jsonl"}, "node config has no signing-key"),
        (node(home, 7), "signing-key = .*node-7: cannot be read"),
        (node(home, 0, **{"signing-key": f"{home}/keys/node-0.pub"}), "signing-key = .* cannot be read"),
        (node(home, 0, signers=f"{home}/none"), "signers = .*: there is no such file"),
        (node(home, 0, signers=f"{home}/damaged.jsonl"), "a key in it is none of an elliptic curve"),
    ):
        with pytest.raises(ConfigError, match=said):
            signing(made.clients, config)
