"""The server's side of Flower: broadcasts through its Grid, and a round that no client can hold up for ever."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flwr.app import Message
from flwr.serverapp import Grid

from fedpm.engines.base import Clients, Fault, Limits, Task
from fedpm.engines.flower import replies
from fedpm.engines.flower.work import Request
from fedpm.errors import EngineError
from fedpm.methods.base import ClientResult

_AFTERLIFE = 60.0
"""Seconds for which Flower keeps a message after its round: an answer in this time is counted as late."""

_QUIET = 10.0
"""Seconds of waiting for nodes of which nobody needs to be told."""


@dataclass(frozen=True)
class Sent:
    """A message that is under way."""

    task: Task
    node: int
    round: int
    whole: bool = False
    resent: int = 0


class Fleet:
    """Runs the clients of the nodes that a Flower Grid reaches."""

    def __init__(
        self,
        grid: Grid,
        clients: Clients,
        total: int,
        limits: Limits,
        *,
        pause: float = 1.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._grid, self._clients, self._total, self._limits = grid, clients, total, limits
        self._pause, self._say = pause, say
        self._hosts: dict[int, list[int]] = {}  # what each node hosts
        self._asked: dict[str, int] = {}  # nodes that were asked for it, by message
        self._overdue: dict[str, Sent] = {}  # messages of earlier rounds
        self._held: dict[int, int] = {}  # the node of each client's last answer
        self._begun = False

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[tuple[int, ClientResult | Fault]]:
        """Yield the answers in order, with a fault for each client that gave none, and those that came too late."""
        nodes = self._gather(round, [task.client for task in tasks])
        end = time.monotonic() + self._limits.deadline
        pending, answers = dict[str, Sent](), dict[int, ClientResult | Fault]()
        for task in tasks:
            if task.client in nodes:
                pending.update(self._send(Sent(task, nodes[task.client], round)))
        late: list[tuple[int, Fault]] = []
        for _ in self._polls(end):
            if not pending:
                break
            for message, reply in self._pull([*pending, *self._overdue]):
                if message in self._overdue:
                    late += self._too_late(self._overdue.pop(message), reply)
                    continue
                note = pending.pop(message)
                if isinstance(reply, Fault) and reply.kind == "lacks" and not note.whole:
                    pending.update(self._send(replace(note, whole=True)))
                    continue
                answers[note.task.client] = self._settled(note, reply)
        self._overdue.update(pending)
        for note in pending.values():
            reason = f"no answer within {self._limits.deadline:g} s (flower.deadline)"
            answers[note.task.client] = Fault("silent", reason, note.resent)
        for task in tasks:
            absent = Fault("absent", "its node is not connected", -len(task.broadcast))
            yield task.client, answers.get(task.client, absent)
        yield from late

    def close(self) -> None:
        """Nothing was started."""

    # -- messages -----------------------------------------------------------------------------------------

    def _send(self, note: Sent) -> dict[str, Sent]:
        """Send a client its broadcast, the whole one if it does not hold what the brief one builds on.

        The message is returned by its name; without one, its node has just gone.
        """
        task, limits = note.task, self._limits
        broadcast, resent = task.broadcast, 0
        unknown = self._held.get(task.client) != note.node
        if note.whole or (task.memory and unknown):
            broadcast = self._clients.algorithm.remember(task.broadcast, note.round, task.memory)
            resent = len(broadcast) - (0 if note.whole else len(task.broadcast))
        request = Request(task.client, note.round, limits.deadline, broadcast)
        message = replies.ask(request, note.node, limits.deadline + _AFTERLIFE)
        return {name: replace(note, resent=resent) for name in self._push(message)}

    def _push(self, message: Message) -> list[str]:
        return [name for name in self._grid.push_messages([message]) if name]

    def _pull(self, ids: list[str]) -> Iterator[tuple[str, ClientResult | Fault]]:
        """Yield what came in, by the message that it answers: the sender's own word is no proof."""
        for reply in self._grid.pull_messages(ids):
            yield reply.metadata.reply_to_message_id, replies.read_answer(reply)

    def _settled(self, note: Sent, reply: ClientResult | Fault) -> ClientResult | Fault:
        if isinstance(reply, ClientResult):
            self._held[note.task.client] = note.node
        elif reply.kind == "absent":
            self._hosts.pop(note.node, None)  # started anew with other clients: it is asked again
        return replace(reply, resent=note.resent)

    def _too_late(self, note: Sent, reply: ClientResult | Fault) -> list[tuple[int, Fault]]:
        if isinstance(reply, Fault):
            return []  # it was counted as silent in its own round
        return [(note.task.client, Fault("late", f"its answer to round {note.round} came after the deadline"))]

    def _polls(self, end: float) -> Iterator[None]:
        """Let the caller look again and again, at first often and then every ``pause`` seconds, up to an end."""
        pause = 0.02
        while time.monotonic() < end:
            yield
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            pause = min(1.5 * pause, self._pause)
        yield  # once more at the very end

    # -- nodes --------------------------------------------------------------------------------------------

    def _gather(self, round: int, wanted: list[int]) -> dict[int, int]:
        """Return the nodes of the clients that are connected.

        The first round waits for all clients, later ones only for a quorum: who is gone then is left out.
        """
        limits, told, start = self._limits, -1, time.monotonic()
        for _ in self._polls(time.monotonic() + limits.patience):
            nodes = self._connected()
            here = [client for client in wanted if client in nodes]
            if len(nodes) == self._total or (self._begun and len(here) >= limits.quorum):
                break
            if len(nodes) != told and time.monotonic() > start + _QUIET:
                told = len(nodes)
                self._say(f"round {round}: {told} of {self._total} clients are connected; waiting for more")
        if len(here) < limits.quorum:
            raise EngineError(
                f"round {round}: {len(here)} of its {len(wanted)} clients are connected after {limits.patience:g} s "
                f"(flower.patience), fewer than the quorum of {limits.quorum} (flower.quorum); connect more SuperNodes "
                "and start the run again: it continues where it stopped"
            )
        self._begun = True
        return {client: nodes[client] for client in here}

    def _connected(self) -> dict[int, int]:
        """Return the node of every client that is connected now, asking nodes that are new."""
        online = set(self._grid.get_node_ids())
        self._hosts = {node: clients for node, clients in self._hosts.items() if node in online}
        self._asked = {message: node for message, node in self._asked.items() if node in online}
        for node in sorted(online - set(self._hosts) - set(self._asked.values())):
            for name in self._push(replies.ask_hosted(node, self._limits.patience + _AFTERLIFE)):
                self._asked[name] = node
        if self._asked:
            for reply in self._grid.pull_messages(list(self._asked)):
                node = self._asked.pop(reply.metadata.reply_to_message_id)
                self._admit(node, replies.read_hosted(reply, self._total))
        return {client: node for node, clients in self._hosts.items() for client in clients}

    def _admit(self, node: int, clients: list[int] | Fault) -> None:
        """Note what a node hosts; a client that another node hosts stays with that one."""
        if isinstance(clients, Fault) and clients.kind in ("crashed", "silent"):
            return  # if it is still there, it is asked again
        if isinstance(clients, Fault):
            self._say(f"node {node} is left out ({clients.kind}): {clients.reason}")
            clients = []
        taken = {client for hosts in self._hosts.values() for client in hosts}
        for client in taken.intersection(clients):
            self._say(f"node {node} hosts client {client} too: left out there, another node had it first")
        self._hosts[node] = [client for client in clients if client not in taken]
