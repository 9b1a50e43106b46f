"""The server's side of Flower: broadcasts through its Grid, and a round that no client can hold up for ever."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from flwr.app import Message
from flwr.serverapp import Grid

from fedpm.engines.base import Clients, Fault, Reply, Task
from fedpm.engines.flower import Limits, messages, replies
from fedpm.engines.flower.doorbell import Doorbell, NoBell
from fedpm.engines.flower.node import Request, mark_of
from fedpm.errors import EngineError
from fedpm.methods.base import ClientResult

_AFTERLIFE = 60.0
"""Seconds for which Flower keeps a message after its round: an answer in this time is counted as late."""

_SELDOM = 1.0
"""Seconds between two looks at all nodes where each rings when it has answered."""

_SILENCE = 10.0
"""Seconds of waiting for nodes of which nobody needs to be told."""


@dataclass(frozen=True)
class Pending:
    """A client's broadcast that is under way; ``full`` if it builds on nothing that its node should remember.

    ``sent`` counts the bytes of all that the client was sent in this round.
    """

    task: Task
    node: int
    round: int
    full: bool = False
    sent: int = 0


class Fleet:
    """Runs the clients of the nodes that a Flower Grid reaches. Messages are known by Flower's ids of them.

    ``owned`` gives the clients that a node may answer for; without it a node's own word is taken. ``columns`` are those
    of the server's table, by which nodes order theirs.
    """

    def __init__(
        self,
        grid: Grid,
        clients: Clients,
        limits: Limits,
        *,
        total: int,
        columns: Sequence[str] = (),
        owned: Callable[[int], Sequence[int]] | None = None,
        pause: float = 0.25,
        bell: Doorbell | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._grid, self._clients, self._limits, self._total = grid, clients, limits, total
        self._owned, self._pause, self._say = owned, pause, say
        self._columns, self._mark = tuple(columns), mark_of(columns)
        self._hosted: dict[int, list[int]] = {}  # the clients of each node
        self._queries: dict[str, int] = {}  # the nodes that were asked for theirs
        self._overdue: dict[str, Pending] = {}  # broadcasts of earlier rounds
        self._last_node: dict[int, int] = {}  # the node of each client's last answer
        self._refused: list[Reply] = []  # claims of clients that are another node's, not yet told
        self._bell, self._rings = bell or NoBell(), False
        self._begun = False

    @property
    def quorum(self) -> int:
        """How many usable answers a round needs."""
        return self._limits.quorum

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the answers in order, with a fault for each client that gave none, and those that came too late."""
        later = bool(tasks and tasks[0].stage)
        nodes = self._still_there() if later else self._await_nodes(round, [task.client for task in tasks])
        deadline = time.monotonic() + self._limits.deadline
        pending, answers = dict[str, Pending](), dict[int, Reply]()
        for task in tasks:
            if task.client in nodes:
                pending.update(self._send(Pending(task, nodes[task.client], round)))
        late: list[Reply] = []
        for rung in self._polls(deadline) if pending else ():
            awaited = {**pending, **self._overdue}.items()
            for message, reply in self._pull([name for name, sent in awaited if rung is None or sent.node in rung]):
                if message in self._overdue:
                    late += _late(self._overdue.pop(message), reply)
                    continue
                broadcast = pending.pop(message)
                if isinstance(reply, Fault) and reply.kind == "lacks" and not (broadcast.full or later):
                    pending.update(self._send(replace(broadcast, full=True)))
                    continue
                answers[broadcast.task.client] = self._settle(broadcast, reply)
            if not pending:
                break
        self._overdue.update(pending)
        for broadcast in pending.values():
            reason = f"no answer within {self._limits.deadline:g} s (flower.deadline)"
            answers[broadcast.task.client] = _reply(broadcast, Fault("silent", reason))
        for task in tasks:
            absent = Reply(task.client, Fault("absent", "its node is not connected"), sent=0, received=0)
            yield answers.get(task.client, absent)
        yield from late
        self._hear()  # who was asked when the round began, and has answered since
        yield from self._refused
        self._refused = []

    def close(self) -> None:
        """Nothing was started."""

    # -- messages -----------------------------------------------------------------------------------------

    def _send(self, pending: Pending) -> dict[str, Pending]:
        """Send a client its broadcast, the full one if its node does not hold what the brief one builds on.

        Names of columns go with it to a node that may not know them. It is returned by the id of its message; there is
        none if the node has just gone.
        """
        task, deadline = pending.task, self._limits.deadline
        broadcast = task.broadcast
        unknown = pending.full or self._last_node.get(task.client) != pending.node
        if task.memory and unknown:
            broadcast = self._clients.method.whole(task.broadcast, pending.round, task.memory)
        columns = self._columns if unknown else ()
        asked = (task.client, pending.round, deadline, broadcast, task.stage, task.score)
        request = Request(*asked, mark=self._mark, columns=columns)
        message = messages.write_request(request, pending.node, deadline + _AFTERLIFE)
        return {name: replace(pending, sent=pending.sent + len(broadcast)) for name in self._push(message)}

    def _push(self, message: Message) -> list[str]:
        names = [name for name in self._grid.push_messages([message]) if name]
        self._bell.ring(message.metadata.dst_node_id)
        return names

    def _pull(self, ids: list[str]) -> Iterator[tuple[str, ClientResult | Fault]]:
        """Yield what came in, by the message that it answers: the sender's own word is no proof."""
        for reply in self._grid.pull_messages(ids) if ids else ():
            yield reply.metadata.reply_to_message_id, replies.read_answer(reply)

    def _settle(self, broadcast: Pending, answer: ClientResult | Fault) -> Reply:
        if isinstance(answer, ClientResult):
            self._last_node[broadcast.task.client] = broadcast.node
        elif answer.kind == "absent":
            self._hosted.pop(broadcast.node, None)  # started anew with other clients: it is asked again
        return _reply(broadcast, answer)

    def _polls(self, end: float) -> Iterator[Collection[int] | None]:
        """Let the caller look up to an end at nodes that have rung, and at all (None) every ``pause`` seconds.

        At first more often; but seldom if nodes ring: to find an answer that is still under way takes Flower a second.
        """
        pause = 0.02
        yield None
        while (left := end - time.monotonic()) > 0:
            rung = self._bell.wait(min(_SELDOM if self._rings else pause, left))
            self._rings = self._rings or bool(rung)
            yield rung or None
            pause = min(1.5 * pause, self._pause)
        yield None  # once more at the very end

    # -- nodes --------------------------------------------------------------------------------------------

    def _await_nodes(self, round: int, chosen: list[int]) -> dict[int, int]:
        """Return the nodes of the chosen clients that are connected.

        The first round waits for all clients, later ones only for a quorum: who is gone then is left out.
        """
        limits, told, start = self._limits, -1, time.monotonic()
        for _ in self._polls(start + limits.patience):
            nodes = self._connected()
            present = [client for client in chosen if client in nodes]
            if len(nodes) == self._total or (self._begun and len(present) >= limits.quorum):
                break
            if len(nodes) != told and time.monotonic() > start + _SILENCE:
                told = len(nodes)
                self._say(f"round {round}: {told} of {self._total} clients are connected; waiting for more")
        if len(present) < limits.quorum:
            raise EngineError(
                f"round {round}: {len(present)} of its {len(chosen)} clients are connected after {limits.patience:g} s "
                f"(flower.patience), fewer than the quorum of {limits.quorum} (flower.quorum); connect more SuperNodes "
                "and start the run again: it continues where it stopped"
            )
        self._begun = True
        return {client: nodes[client] for client in present}

    def _still_there(self) -> dict[int, int]:
        """Return the nodes of clients that are connected and gave the clients' last answers: they can go on."""
        return {client: node for client, node in self._connected().items() if self._last_node.get(client) == node}

    def _connected(self) -> dict[int, int]:
        """Return the node of every client that is connected now, asking nodes that are new."""
        online = set(self._grid.get_node_ids())
        self._hosted = {node: clients for node, clients in self._hosted.items() if node in online}
        self._queries = {message: node for message, node in self._queries.items() if node in online}
        for node in sorted(online - set(self._hosted) - set(self._queries.values())):
            query = messages.write_query(node, self._limits.patience + _AFTERLIFE)
            self._queries.update(dict.fromkeys(self._push(query), node))
        self._hear()
        return {client: node for node, clients in self._hosted.items() for client in clients}

    def _hear(self) -> None:
        """Take up what nodes that were asked say that they host."""
        if self._queries:
            for reply in self._grid.pull_messages(list(self._queries)):
                node = self._queries.pop(reply.metadata.reply_to_message_id)
                self._admit(node, replies.read_hosted(reply, self._total))

    def _admit(self, node: int, clients: list[int] | Fault) -> None:
        """Take up what a node hosts; a client that another node hosts stays with that one."""
        if isinstance(clients, Fault) and clients.kind in ("crashed", "silent"):
            return  # if it is still there, it is asked again
        if isinstance(clients, Fault):
            self._say(f"node {node} is left out ({clients.kind}): {clients.reason}")
            clients = []
        own = clients if self._owned is None else self._owned(node)
        if foreign := sorted(set(clients).difference(own)):
            words = f"but its key is registered for {list(own) or 'none'}: it is left out (see fedpm flower register)"
            self._refuse(f"node {node} claims clients {clients}, {words}", foreign)
            clients = []
        taken = {client for hosted in self._hosted.values() for client in hosted}
        for client in sorted(taken.intersection(clients)):
            reason = f"node {node} hosts client {client} too: left out there, another node had it first"
            self._refuse(reason, [client])
        self._hosted[node] = [client for client in clients if client not in taken]

    def _refuse(self, reason: str, clients: list[int]) -> None:
        """Say that a node claims clients that are not its own, and count that as faults of this round."""
        self._say(reason)
        self._refused += [Reply(client, Fault("wrong node", reason), sent=0, received=0) for client in clients]


def _reply(broadcast: Pending, answer: ClientResult | Fault) -> Reply:
    received = len(answer.payload) if isinstance(answer, ClientResult) else 0
    return Reply(broadcast.task.client, answer, broadcast.sent, received)


def _late(broadcast: Pending, answer: ClientResult | Fault) -> list[Reply]:
    if isinstance(answer, Fault):
        return []  # it was counted as silent in its own round, and so was what it had been sent
    fault = Fault("late", f"its answer to round {broadcast.round} came after the deadline")
    return [Reply(broadcast.task.client, fault, sent=0, received=len(answer.payload))]
