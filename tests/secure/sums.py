"""Whole secure sums in one process, with clients that go missing where a test says so."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from fedpm.errors import WireError
from fedpm.secure.client import Client
from fedpm.secure.messages import Stage
from fedpm.secure.server import Server
from fedpm.secure.session import Session
from fedpm.secure.vectors import Part, Words, sum_bits

Missing = Mapping[Stage, Collection[int]]


def session(clients: int, size: int = 50, context: bytes = b"run, round 1") -> Session:
    return Session.of(context, tuple(range(clients)), (Part(size, sum_bits(clients)), Part(3, 24)))


def inputs(agreed: Session, seed: int = 1) -> dict[int, list[Words]]:
    """Return a mask and a few fixed-point numbers for each client."""
    rng = np.random.default_rng(seed)
    sizes = [part.size for part in agreed.parts]
    return {
        client: [rng.integers(0, 2, sizes[0], np.uint8), rng.integers(0, 2**18, sizes[1], np.uint32)]
        for client in agreed.clients
    }


def open_sum(values: Mapping[int, list[Words]], clients: Collection[int]) -> list[list[int]]:
    return [np.stack([values[c][part] for c in clients]).sum(axis=0, dtype=np.int64).tolist() for part in (0, 1)]


class Run:
    """A session, stage by stage."""

    def __init__(self, agreed: Session, make: Callable[[Session, int], Client] = Client) -> None:
        self.session, self.server = agreed, Server(agreed)
        self.clients = {client: make(agreed, client) for client in agreed.clients}
        self.values = inputs(agreed)
        self.told: dict[int, bytes] = dict.fromkeys(agreed.clients, b"")
        self.sent: dict[Stage, dict[int, bytes]] = {}
        self.refused: dict[int, str] = {}

    def answer(self, client: int) -> bytes:
        """Return a client's message of the stage that is due."""
        one, told = self.clients[client], self.told[client]
        match self.server.stage:
            case Stage.ADVERTISE:
                return one.advertise()
            case Stage.SHARES:
                return one.share(told)
            case Stage.MASKED:
                return one.mask(told, self.values[client])
            case _:
                return one.reveal(told)

    def step(self, missing: Collection[int] = ()) -> None:
        """Let all clients but some answer, and move on unless this was the last stage."""
        stage = self.server.stage
        self.sent[stage] = {}
        for client in sorted(self.told.keys() - set(missing)):
            try:
                self.sent[stage][client] = self.answer(client)
            except WireError as error:
                self.refused[client] = str(error)
                continue
            self.server.receive(client, self.sent[stage][client])
        if stage is not Stage.REVEAL:
            self.told = self.server.advance()

    def until(self, stage: Stage, missing: Missing | None = None) -> "Run":
        """Take all steps before a stage."""
        while self.server.stage is not stage:
            self.step((missing or {}).get(self.server.stage, ()))
        return self

    def sum(self, missing: Missing | None = None) -> list[list[int]]:
        """Take all steps and return the sum."""
        self.until(Stage.REVEAL, missing).step((missing or {}).get(Stage.REVEAL, ()))
        return [values.tolist() for values in self.server.sum()]
