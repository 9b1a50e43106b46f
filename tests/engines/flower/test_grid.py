"""The Flower engine over Flower's own in-memory Grid and message store; the nodes are threads that misbehave."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import uuid4

import pytest

import fedpm
from fedpm.config import Config
from fedpm.engines.base import Engine, Reply, Task
from fedpm.engines.flower import Limits
from fedpm.engines.flower.environment import require_flower
from fedpm.engines.inprocess import Sequential
from fedpm.errors import EngineError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.result import Result
from fedpm.methods.base import ClientResult
from tests.engines.missing import Only
from tests.experiment.test_judging import hospitals
from tests.model.test_pretrained import base
from tests.small import small_config, small_net

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = pytest.mark.flower
require_flower()

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.proto.task_pb2 import Task as FlowerTask  # noqa: E402
from flwr.server.superlink.linkstate import LinkStateFactory  # noqa: E402
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord  # noqa: E402
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID  # noqa: E402
from flwr.supercore.object_store import ObjectStoreFactory  # noqa: E402
from flwr.supercore.run import Run  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.superlink.federation import NoOpFederationManager  # noqa: E402
from flwr.superlink.grid import InMemoryGrid  # noqa: E402

from fedpm.engines.flower import messages  # noqa: E402
from fedpm.engines.flower.grid import Fleet  # noqa: E402
from fedpm.engines.flower.node import Memory, Request, answer  # noqa: E402

Behave = Callable[[Message, Context], Message | None]


class Nodes:
    """Nodes of a Flower run, each answered by a thread; ``wrong`` replaces what a client does."""

    def __init__(self, config: Config, experiment: Experiment, partitions: Sequence[int], of: int) -> None:
        self.config, self.experiment, self.wrong = config, experiment, dict[tuple[int, int], Behave]()
        self.asked: list[tuple[int, int, int]] = []
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state: Any = cast(Any, factory.state())
        run = Run.create_empty(run_id=7)
        run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
        self.state.run_ids[7] = RunRecord(run=run)
        self.state.task_store[1] = FlowerTask(task_id=1, run_id=7)
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(run)
        self.of, self.contexts, self.stopped = of, dict[int, Context](), threading.Event()
        for partition in partitions:
            self.add(partition)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def add(self, partition: int) -> int:
        node: int = self.state.create_node("", "", secrets.token_bytes(32), heartbeat_interval=1e300)
        self.state.acknowledge_node_heartbeat(node_id=node, heartbeat_interval=1e300)
        config: Any = {"partition-id": partition, "num-partitions": self.of}
        self.contexts[node] = Context(run_id=7, node_id=node, node_config=config, state=RecordDict(), run_config={})
        return node

    def serve(self) -> None:
        while not self.stopped.wait(0.005):
            for node, context in list(self.contexts.items()):
                for message in self.state.get_message_ins(node_id=node, limit=None):
                    reply = self.answer(message, context)
                    if reply is not None:
                        self.send(reply)

    def send(self, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        self.state.store_message_res(reply)

    def answer(self, message: Message, context: Context) -> Message | None:
        total = self.experiment.start.clients
        if message.metadata.message_type == "query":
            return messages.write_hosted(message, messages.clients_of(context, total))
        request = messages.read_request(message)
        self.asked.append((request.round, request.client, len(request.broadcast)))
        if (request.round, request.client) in self.wrong:
            return self.wrong[request.round, request.client](message, context)
        return self.honest(message, context)

    def honest(self, message: Message, context: Context) -> Message:
        request, memory = messages.read_request(message), messages.recall(context)
        upload, memory = answer(self.experiment.clients, request, memory)
        messages.remember(context, memory)
        return messages.write_answer(message, upload)

    def fleet(self, quorum: int = 1, deadline: float = 1.0, patience: float = 20.0, **how: Any) -> Fleet:
        limits = Limits(quorum, deadline, patience)
        total = self.experiment.start.clients
        return Fleet(self.grid, self.experiment.clients, limits, total=total, pause=0.02, **how)

    def registered(self) -> dict[int, list[int]]:
        """Return the clients of each node as its operator would register them."""
        total = self.experiment.start.clients
        return {node: messages.clients_of(context, total) for node, context in self.contexts.items()}


@contextmanager
def nodes(
    partitions: Sequence[int], of: int, given: Any = None, net: Any = None, **settings: object
) -> Iterator[Nodes]:
    config = small_config(engine="flower", **settings)
    cluster = Nodes(config, build(config, net=net or small_net(), data=given), partitions, of)
    try:
        yield cluster
    finally:
        cluster.stopped.set()
        cluster.thread.join()


def train(cluster: Nodes, engine: Engine) -> Result:
    return fedpm.run(cluster.config, net=small_net(), start=lambda experiment: engine)


def raw(message: Message, **values: Any) -> Message:
    return Message(RecordDict({messages.RECORD: ConfigRecord(values)}), reply_to=message)


def expected(cluster: Nodes, missing: set[tuple[int, int]]) -> bytes:
    return train(cluster, Only(cluster.experiment, missing)).file.to_bytes()


def test_all_well_gives_the_same_bytes_both_ways() -> None:
    with nodes([0, 1, 2, 3], 4, clients={"total": 4}) as cluster:
        result = train(cluster, cluster.fleet(quorum=4, deadline=60))
        alone = fedpm.run(small_config(), net=small_net())
    assert result.file.to_bytes() == alone.file.to_bytes()
    for record, other in zip(result.rounds, alone.rounds, strict=True):
        assert {**record, "seconds": 0} == {**other, "seconds": 0}
    assert result.rounds[2]["downlink_bytes"] < result.rounds[1]["downlink_bytes"] * 1.5


class Bell:
    """Rings for one node at a time, whichever was sent something and is next."""

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.turn = 0

    def ring(self, node: int) -> None:
        self.rung.append(node)

    def wait(self, seconds: float) -> list[int]:
        time.sleep(0.01)
        self.turn += 1
        return [self.rung[self.turn % len(self.rung)]]


def test_only_nodes_that_ring_are_looked_at_and_the_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes([0, 1, 2, 3], 4, clients={"total": 4}) as cluster:
        bell, pull, looked = Bell(), cluster.grid.pull_messages, list[int]()

        def counting(ids: Any) -> Any:
            looked.append(len(list(ids)))
            return pull(ids)

        monkeypatch.setattr(cluster.grid, "pull_messages", counting)
        result = train(cluster, cluster.fleet(quorum=4, deadline=60, bell=bell))
        alone = fedpm.run(small_config(), net=small_net())
        queries = len(cluster.contexts)
    assert result.file.to_bytes() == alone.file.to_bytes()
    assert len(bell.rung) == queries + sum(len(record["clients"]) for record in result.rounds)
    assert looked.count(1) > len(result.rounds), "a look at all is for the beginning of a round"


@pytest.mark.slow
def test_masks_over_a_pretrained_network_give_the_same_bytes_in_process_with_workers_and_on_flower() -> None:
    net, settings = base(), dict[str, Any](rounds=2, clients={"total": 3}, model={"weights": "given"})
    with nodes(range(3), 3, net=net, **settings) as cluster:
        fleet = cluster.fleet(quorum=3, deadline=60)
        result = fedpm.run(cluster.config, net=net, start=lambda experiment: fleet)
    for workers in (1, 2):
        alone = fedpm.run(small_config(workers=workers, **settings), net=net)
        assert result.file.to_bytes() == alone.file.to_bytes()
        for record, other in zip(result.rounds, alone.rounds, strict=True):
            assert {**record, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.slow
def test_a_federation_gives_the_same_bytes_in_process_with_workers_and_on_flower() -> None:
    given, settings = hospitals(), dict[str, Any](rounds=2, evaluation={"at": "clients", "local": True}, data={})
    with nodes(range(3), 3, given, **settings) as cluster:
        fleet = cluster.fleet(quorum=3, deadline=60)
        result = fedpm.run(cluster.config, net=small_net(), data=given, start=lambda experiment: fleet)
    for workers in (1, 2):
        alone = fedpm.run(small_config(workers=workers, **settings), net=small_net(), data=given)
        assert result.file.to_bytes() == alone.file.to_bytes()
        for record, other in zip(result.rounds, alone.rounds, strict=True):
            assert {**record, "seconds": 0} == {**other, "seconds": 0}


def test_clients_of_one_node_can_be_rounds_apart() -> None:
    settings = {"rounds": 6, "clients": {"total": 4, "sampled": 2}}
    with nodes([0, 1], 2, **settings) as cluster:
        result = train(cluster, cluster.fleet(quorum=2, deadline=60))
        alone = train(cluster, Sequential(cluster.experiment.clients))
    assert result.file.to_bytes() == alone.file.to_bytes()
    for record, other in zip(result.rounds, alone.rounds, strict=True):  # nothing had to be sent twice
        assert {**record, "seconds": 0} == {**other, "seconds": 0}


def foreign(cluster: Nodes) -> bytes:
    other = build(small_config(seed=9), net=small_net())
    broadcast = other.method.broadcast(other.method.init()).payload
    return payload_of(next(Sequential(other.clients).run(1, [Task(1, broadcast)])))


def payload_of(reply: Reply) -> bytes:
    assert isinstance(reply.answer, ClientResult)
    return reply.answer.payload


@pytest.mark.parametrize("kind", ["garbage", "replay", "wrong model", "wrong client", "error", "silent", "crashed"])
def test_a_fault_is_counted_and_the_model_is_that_of_the_others(kind: str) -> None:
    with nodes([0, 1, 2], 3, clients={"total": 3}, rounds=2) as cluster:
        uploads: dict[tuple[int, int], Any] = {}

        def listen(message: Message, context: Context) -> Message:
            reply, request = cluster.honest(message, context), messages.read_request(message)
            uploads[request.round, request.client] = reply.content[messages.RECORD]["payload"]
            return reply

        def misbehave(message: Message, context: Context) -> Message | None:
            ways: dict[str, Callable[[], Message | None]] = {
                "garbage": lambda: raw(message, payload=b"nonsense" * 40),
                "replay": lambda: raw(message, payload=uploads[1, 1]),
                "wrong model": lambda: raw(message, payload=foreign(cluster)),
                "wrong client": lambda: raw(message, payload=_renamed(cluster, message)),
                "error": lambda: Message(Error(2, "no luck"), reply_to=message),
                "crashed": lambda: raw(message, fault="crashed", reason="code -9"),
                "silent": lambda: None,
            }
            return ways[kind]()

        cluster.wrong = {(1, client): listen for client in range(3)}
        cluster.wrong[2, 1] = misbehave
        result = train(cluster, cluster.fleet(quorum=2, deadline=2.0 if kind == "silent" else 60.0))
        assert result.rounds[0]["faults"] == {}
        assert result.rounds[1]["faults"] == {kind: 1}
        assert list(result.rounds[1]["rejected"]) == ["1"]
        assert result.file.to_bytes() == expected(cluster, {(2, 1)})


def _remembered(cluster: Nodes) -> Mapping[int, bytes]:
    return messages.recall(next(iter(cluster.contexts.values()))).broadcasts


def _renamed(cluster: Nodes, message: Message) -> bytes:
    """Return the honest answer of client 2 to the broadcast of client 1."""
    request = messages.read_request(message)
    method = cluster.experiment.method
    task = Task(2, method.remember(request.broadcast, 2, _remembered(cluster)[1]))
    return payload_of(next(Sequential(cluster.experiment.clients).run(2, [task])))


def test_replies_of_another_program_are_garbage_and_overwrite_no_figure() -> None:
    with nodes([0, 1, 2], 3, clients={"total": 3}, rounds=1, flower={"quorum": 0.1}) as cluster:
        cluster.wrong[1, 0] = lambda message, context: Message(
            RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message
        )
        cluster.wrong[1, 1] = lambda message, context: raw(message, fault="of my own", reason="x")

        def boast(message: Message, context: Context) -> Message:
            reply = cluster.honest(message, context)
            values = dict(reply.content[messages.RECORD])
            return raw(message, **{**values, "accuracy": 1.0, "round": 5.0, "uplink_bytes": 0.0})

        cluster.wrong[1, 2] = boast
        record = train(cluster, cluster.fleet(quorum=1, deadline=60)).rounds[0]
    assert record["faults"] == {"garbage": 2}
    assert record["round"] == 1
    assert record["accuracy"] < 1
    assert record["uplink_bytes"] > 0


def test_a_late_answer_is_counted_when_it_comes_and_not_used() -> None:
    with nodes([0, 1, 2], 3, clients={"total": 3}, rounds=2) as cluster:
        late: list[Message] = []

        def dawdle(message: Message, context: Context) -> None:
            late.append(cluster.honest(message, context))

        def catch_up(message: Message, context: Context) -> Message:
            cluster.send(late.pop())
            threading.Event().wait(0.3)
            return cluster.honest(message, context)

        cluster.wrong = {(1, 1): dawdle, (2, 1): catch_up}
        result = train(cluster, cluster.fleet(quorum=2, deadline=2.0))
        assert result.rounds[0]["faults"] == {"silent": 1}
        assert result.rounds[1]["faults"] == {"late": 1}
        first, second = (result.rounds[number]["uplink_bytes"] for number in (0, 1))
        assert second > 1.5 * first, "two uploads in the first round, four in the second, late as one of them is"
        assert "answer to round 1 came after the deadline" in result.rounds[1]["rejected"]["1"]
        assert result.file.to_bytes() == expected(cluster, {(1, 1)})


def test_a_node_that_lost_its_memory_gets_the_whole_broadcast_in_the_same_round() -> None:
    with nodes([0, 1], 2, clients={"total": 2}) as cluster:

        def forget(message: Message, context: Context) -> Message:
            context.state.clear()
            return cluster.honest(message, context)

        cluster.wrong[2, 1] = forget
        result = train(cluster, cluster.fleet(quorum=2, deadline=60))
        assert result.file.to_bytes() == expected(cluster, set())
        sizes = [size for round, client, size in cluster.asked if (round, client) == (2, 1)]
        assert len(sizes) == 2
        others = [size for round, client, size in cluster.asked if (round, client) == (2, 0)]
        assert result.rounds[1]["downlink_bytes"] == sum(sizes) + sum(others), "what is sent twice is counted twice"
    assert [record["faults"] for record in result.rounds] == [{}, {}, {}]


SECURE = {"codec": "secure-sum", "clients": {"total": 4}, "rounds": 2, "local": {"epochs": 1}}


def test_rounds_in_several_stages_give_the_same_bytes_both_ways() -> None:
    with nodes([0, 1, 2], 3, **SECURE) as cluster:  # clients 0 and 3 are of one node
        result = train(cluster, cluster.fleet(quorum=4, deadline=60))
        alone = train(cluster, Sequential(cluster.experiment.clients))
        assert not any(messages.recall(context).waiting for context in cluster.contexts.values())
    assert result.file.to_bytes() == alone.file.to_bytes()
    for record, other in zip(result.rounds, alone.rounds, strict=True):
        assert {**record, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize(("stage", "kind"), [(1, "error"), (2, "silent"), (3, "error")])
def test_a_node_that_is_lost_between_stages_is_left_out_of_the_sum(stage: int, kind: str) -> None:
    with nodes([0, 1, 2, 3], 4, **SECURE) as cluster:

        def fail(message: Message, context: Context) -> Message | None:
            if messages.read_request(message).stage == stage and kind == "silent":
                return None
            if messages.read_request(message).stage == stage:
                context.state.clear()  # started anew
            return cluster.honest(message, context)

        cluster.wrong[1, 2] = fail
        result = train(cluster, cluster.fleet(quorum=3, deadline=2.0 if kind == "silent" else 60.0))
        assert [record["faults"] for record in result.rounds] == [{kind: 1}, {}]
        assert list(result.rounds[0]["rejected"]) == ([] if stage == 3 else ["2"]), "in the last stage all is said"
        assert result.file.to_bytes() == expected(cluster, set() if stage == 3 else {(1, 2)})


def test_memory_of_another_run_is_not_trusted() -> None:
    with nodes([0], 1, clients={"total": 1}) as cluster:
        context = next(iter(cluster.contexts.values()))
        memory = Memory({1: b"of this run"}, {0: b"of this round"})
        messages.remember(context, memory)
        assert messages.recall(context) == memory
        context.run_id = 8
        assert messages.recall(context) == Memory()


def test_a_new_server_sends_whole_broadcasts_to_clients_of_which_it_knows_nothing() -> None:
    with nodes([0, 1], 2, clients={"total": 2}) as cluster:
        method, clients = cluster.experiment.method, cluster.experiment.clients
        state = method.init()
        first = [Task(c, method.broadcast(state).payload) for c in range(2)]
        updates = [method.decode(state, r.client, payload_of(r)) for r in Sequential(clients).run(1, first)]
        state = method.aggregate(state, updates)
        brief, whole = (method.broadcast(state, since=since).payload for since in (1, None))
        tasks = [Task(c, brief, method.memory(state)) for c in range(2)]
        replies = cluster.fleet(quorum=2, deadline=60).run(2, tasks)
        for reply, alone in zip(replies, Sequential(clients).run(2, tasks), strict=True):
            assert payload_of(reply) == payload_of(alone)
            assert reply.sent == len(whole)
        assert {size for _, _, size in cluster.asked} == {len(whole)}


def test_too_few_answers_end_the_run_and_say_so() -> None:
    with nodes([0, 1, 2], 3, clients={"total": 3}, flower={"quorum": 0.6}) as cluster:
        cluster.wrong = {(1, c): lambda message, context: raw(message, payload=b"?") for c in (0, 1)}
        with pytest.raises(EngineError, match=r"round 1: 1 of 3 clients .* quorum of 2 \(flower.quorum\)"):
            train(cluster, cluster.fleet(quorum=2, deadline=60))


def test_too_few_nodes_end_the_run_at_the_deadline_and_say_so() -> None:
    words = r"1 of its 3 clients are connected after 0.5 s \(flower.patience\)"
    with nodes([0], 3, clients={"total": 3}) as cluster, pytest.raises(EngineError, match=words):
        train(cluster, cluster.fleet(quorum=2, patience=0.5))


def test_a_quorum_of_nodes_goes_on_without_the_others() -> None:
    with nodes([0, 2], 3, clients={"total": 3}, rounds=2) as cluster:
        result = train(cluster, cluster.fleet(quorum=2, deadline=60, patience=0.5))
        assert [record["faults"] for record in result.rounds] == [{"absent": 1}, {"absent": 1}]
        assert result.rounds[0]["rejected"] == {"1": "its node is not connected"}
        sent = [size for round, _, size in cluster.asked if round == 2]
        assert result.rounds[1]["downlink_bytes"] == sum(sent), "who is absent is sent nothing"
        assert result.file.to_bytes() == expected(cluster, {(1, 1), (2, 1)})


def test_a_node_that_goes_just_before_its_message_is_absent() -> None:
    with nodes([0, 1], 2, clients={"total": 2}, rounds=1) as cluster:
        fleet = cluster.fleet(quorum=1, deadline=60)
        leaving = list(cluster.contexts)[1]
        push = cluster.grid.push_messages

        def push_after(sent: list[Message]) -> object:
            if sent[0].metadata.message_type == "train" and leaving in cluster.state.nodes:
                cluster.state.nodes.pop(leaving)
            return push(sent)

        cluster.grid.push_messages = push_after  # type: ignore[method-assign, assignment]
        assert train(cluster, fleet).rounds[0]["faults"] == {"absent": 1}


def test_a_client_stays_with_the_node_that_had_it_first(capsys: pytest.CaptureFixture[str]) -> None:
    with nodes([0, 1], 2, clients={"total": 2}, rounds=1) as cluster:
        fleet = cluster.fleet(quorum=2, deadline=60)
        while len(fleet._connected()) < 2:
            pass
        mine = dict(fleet._connected())
        impostor = cluster.add(0)
        while impostor not in fleet._hosted:
            fleet._connected()
        assert fleet._connected() == mine
    assert f"node {impostor} hosts client 0 too: left out there" in capsys.readouterr().out


def test_a_node_that_claims_the_clients_of_others_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with nodes([0, 1, 2], 3, clients={"total": 3}, rounds=2) as cluster:
        owners = cluster.registered()
        liar, honest = next(iter(owners)), cluster.answer

        def claim_all(message: Message, context: Context) -> Message | None:
            if message.metadata.message_type == "query" and context.node_id == liar:
                return raw(message, clients=[0, 1, 2])
            return honest(message, context)

        cluster.answer = claim_all  # type: ignore[method-assign]
        owned = cluster.fleet(quorum=2, deadline=60, patience=1.0, owned=lambda node: owners.get(node, []))
        result = train(cluster, owned)
        assert {client for _, client, _ in cluster.asked} == {1, 2}, "the liar is asked for nothing"
        assert result.file.to_bytes() == expected(cluster, {(1, 0), (2, 0)})
    sentence = f"node {liar} claims clients [0, 1, 2], but its key is registered for [0]: it is left out"
    assert sentence in capsys.readouterr().out
    assert result.rounds[0]["faults"] == {"absent": 1, "wrong node": 2}
    assert sentence in result.rounds[0]["rejected"]["1"]
    assert result.rounds[1]["faults"] == {"absent": 1}


def test_a_claim_that_comes_while_a_round_goes_on_is_told_with_that_round() -> None:
    with nodes([0, 0, 1], 2, clients={"total": 2}, rounds=1) as cluster:
        owners, held, honest = cluster.registered(), list[Message](), cluster.answer
        liar = next(iter(owners))

        def claim_late(message: Message, context: Context) -> Message | None:
            if message.metadata.message_type == "query" and context.node_id == liar:
                held.append(raw(message, clients=[0, 1]))
                return None
            while message.metadata.message_type != "query" and held:
                cluster.send(held.pop())
            return honest(message, context)

        cluster.answer = claim_late  # type: ignore[method-assign]
        fleet = cluster.fleet(quorum=2, deadline=60, owned=lambda node: [] if node == liar else owners[node])
        result = train(cluster, fleet)
    assert result.rounds[0]["faults"] == {"wrong node": 2}
    assert "is registered for none" in result.rounds[0]["rejected"]["0"]


def test_a_node_that_is_not_in_the_table_hosts_nobody() -> None:
    with nodes([0, 1], 2, clients={"total": 2}, rounds=1) as cluster:
        second = list(cluster.registered())[1]
        result = train(
            cluster, cluster.fleet(deadline=60, patience=1.0, owned=lambda node: [1] if node == second else [])
        )
    assert result.rounds[0]["faults"] == {"absent": 1, "wrong node": 1}
    assert "is registered for none" in result.rounds[0]["rejected"]["0"]


def test_a_client_that_two_nodes_are_registered_for_is_a_fault_of_the_second() -> None:
    with nodes([0, 1, 1], 2, clients={"total": 2}, rounds=2) as cluster:
        owners = cluster.registered()
        fleet = cluster.fleet(quorum=2, deadline=60, owned=lambda node: owners[node])
        while len(fleet._hosted) < 3:
            fleet._connected()
        result = train(cluster, fleet)
        assert result.file.to_bytes() == expected(cluster, set())
    assert [record["faults"] for record in result.rounds] == [{"wrong node": 1}, {}]


def test_the_id_of_a_message_cannot_be_guessed() -> None:
    asked = [messages.write_request(Request(1, 1, 60.0, b"broadcast"), 4, 60) for _ in range(2)]
    bodies = [message.content.object_id for message in (*asked, *(messages.write_query(4, 60) for _ in range(2)))]
    assert len(set(bodies)) == 4, "Flower takes a reply from whoever knows the id, which is a hash of the message"


def test_a_node_that_cannot_say_whom_it_hosts_is_left_out_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with nodes([0, 1], 2, clients={"total": 2}, rounds=1) as cluster:
        honest = cluster.answer

        def confused(message: Message, context: Context) -> Message | None:
            if message.metadata.message_type == "query" and context.node_config["partition-id"] == 1:
                return raw(message, clients=[5, -1])
            return honest(message, context)

        cluster.answer = confused  # type: ignore[method-assign]
        result = train(cluster, cluster.fleet(quorum=1, deadline=60, patience=1.0))
    assert result.rounds[0]["faults"] == {"absent": 1}
    assert "is left out (garbage): hosts clients [5, -1]: should be numbers from 0 to 1" in capsys.readouterr().out


def test_a_node_without_a_partition_is_left_out_with_the_reason() -> None:
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 2, "num-partitions": 2}, state=RecordDict(), run_config={})  # fmt: skip  # noqa: E501
    with pytest.raises(EngineError, match="partition-id = 2, num-partitions = 2"):
        messages.clients_of(context, 4)
