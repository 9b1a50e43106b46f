"""Tables of a fleet: each node reads its own, and their columns go by the names that the server's have."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = pytest.mark.flower

from flwr.app import Context, Message, RecordDict  # noqa: E402

import fedpm  # noqa: E402
from fedpm import config as configs  # noqa: E402
from fedpm.engines.base import Fault, Task  # noqa: E402
from fedpm.engines.flower import messages  # noqa: E402
from fedpm.engines.flower.deploy.folder import init  # noqa: E402
from fedpm.engines.flower.deploy.settings import AppSettings  # noqa: E402
from fedpm.engines.flower.deploy.worker import answered  # noqa: E402
from fedpm.engines.flower.node import Request  # noqa: E402
from fedpm.experiment.result import Result  # noqa: E402
from tests.data.test_tables import TABLE, of, write  # noqa: E402
from tests.engines.flower.test_folder import run_config  # noqa: E402
from tests.engines.flower.test_grid import Nodes  # noqa: E402

ORDERS = [("c", "label", "a", "b"), ("a", "b", "c", "label")]
"""The columns of the two nodes; the server has those of the second."""
HOOK = """
import pathlib, fedpm

def load(client):
    file = pathlib.Path(__file__).with_name(f"{'server' if client is None else client}.csv")
    return fedpm.dataset(file, file, classes=("sick", "well"))

def bare(client):
    data = load(client)
    return fedpm.dataset((data.train.x, data.train.y), (data.test.x, data.test.y)) if client is None else data
"""


class TableNodes(Nodes):
    """Two nodes that do as real ones do, in threads of this process."""

    def __init__(self, run: dict[str, object]) -> None:
        self.run, self.told = run, list[Request]()
        settings = AppSettings.read(run)
        super().__init__(settings.config, settings.build(None), range(2), 2)

    def honest(self, message: Message, context: Context) -> Message:
        request, memory, node = messages.read_request(message), messages.recall(context), dict(context.node_config)
        self.told.append(request)
        upload, memory = answered(path=[], run=self.run, node=node, request=request, memory=memory)
        messages.remember(context, memory)
        return messages.write_answer(message, upload)

    def trained(self, quorum: int = 2) -> Result:
        """Train as the app of a fleet's server does."""
        settings, columns = AppSettings.read(self.run), self.experiment.dataset.columns
        fleet = self.fleet(quorum, deadline=60.0, columns=columns)
        return fedpm.run(settings.config, **settings.hooks(None), start=lambda experiment: fleet)


@contextmanager
def tables(
    folder: Path, orders: Sequence[Sequence[str]], patch: pytest.MonkeyPatch, **changed: object
) -> Iterator[TableNodes]:
    """Start nodes with a table each, in this order of columns."""
    chosen = ["rounds=2", "clients.total=2", "local.epochs=1", "model.name=mlp", "privacy.secret=false"]
    init(folder / "app", configs.load("quickstart", chosen))
    (folder / "app/tables.py").write_text(HOOK)
    for name, order in zip(("server", "0", "1"), (ORDERS[1], *orders), strict=True):
        write(folder / f"app/{name}.csv", of(*order, d=TABLE["a"]))
    patch.syspath_prepend(str(folder / "app"))
    cluster = TableNodes({**run_config(folder / "app"), "app.data": "tables:load", **changed})
    try:
        yield cluster
    finally:
        cluster.stopped.set()
        cluster.thread.join()
        sys.modules.pop("tables")


def test_tables_in_another_order_train_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tables(tmp_path / "one", [ORDERS[1], ORDERS[1]], monkeypatch) as alike:
        expected = alike.trained()
    with tables(tmp_path / "other", ORDERS, monkeypatch) as mixed:
        trained = mixed.trained()
        assert [request.columns for request in mixed.told] == 2 * [("a", "b", "c")] + 2 * [()], "names are told once"
    assert trained.file.to_bytes() == expected.file.to_bytes()
    assert trained.rounds[-1]["downlink_bytes"] == expected.rounds[-1]["downlink_bytes"]


def test_a_table_that_settings_name_goes_by_names_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned = {"client": (TABLE["a"] > TABLE["b"]).astype(int)}
    write(tmp_path / "server.csv", of(*ORDERS[1], "client", **owned))
    write(tmp_path / "node.csv", of("client", *ORDERS[0], **owned))
    path = f"data.path={tmp_path / 'server.csv'}"
    init(tmp_path / "app", configs.load("quickstart", ["data.name=folder", path, "data.split=given", "model.name=mlp"]))
    settings = run_config(tmp_path / "app")
    server = AppSettings.read(settings).build(None)
    node = AppSettings.read(settings, {"data.path": str(tmp_path / "node.csv")})
    assert (node.build(1, server.dataset.columns).clients.train.x == server.clients.train.x).all()


def test_a_node_that_was_started_anew_is_told_again_in_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables(tmp_path, ORDERS, monkeypatch) as cluster:

        def forget(message: Message, context: Context) -> Message:
            del cluster.wrong[2, 0]
            context.state = RecordDict()
            return cluster.honest(message, context)

        cluster.wrong[2, 0] = forget
        rounds = cluster.trained().rounds
        first, again = (request for request in cluster.told if (request.round, request.client) == (2, 0))
    assert (first.columns, again.columns) == ((), ("a", "b", "c"))
    assert [record["faults"] for record in rounds] == [{}, {}]


@pytest.mark.parametrize(
    ("order", "changed", "words"),
    [
        (("a", "c", "d", "label"), {}, "lacks the column 'b' of the server and has the column 'd', which the server"),
        (ORDERS[0], {"app.data": "tables:bare"}, "a table, and the server's data are none, so that places may differ"),
    ],
)
def test_a_table_that_cannot_be_put_in_order_is_refused_in_one_sentence(
    order: Sequence[str], changed: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables(tmp_path, [order, ORDERS[1]], monkeypatch, **changed) as cluster:
        broadcast = cluster.experiment.method.broadcast(cluster.experiment.method.init()).payload
        columns = cluster.experiment.dataset.columns
        [reply] = cluster.fleet(deadline=60.0, columns=columns).run(1, [Task(0, broadcast)])
    assert isinstance(reply.answer, Fault)
    assert (reply.answer.kind, reply.answer.reason[:22]) == ("error", "DataError: your data: ")
    assert words in reply.answer.reason
