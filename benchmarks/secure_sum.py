"""Secure sums of masks of CONV-4: what they cost a client and the server, and how many bits they take."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

import numpy as np
from tests.secure.sums import Run

from benchmarks.timing import Row
from fedpm.rng import Streams
from fedpm.secure.messages import Stage
from fedpm.secure.session import Session
from fedpm.secure.vectors import Part, sum_bits

CONV4 = 458_698
COUNTS = (10, 100)


def run(size: int = CONV4) -> list[Row]:
    """Sum masks of K clients, once of all and once without a tenth that goes missing when masks are due."""
    return [row(clients, missing, size) for clients in COUNTS for missing in (0, clients // 10)]


def row(clients: int, missing: int, size: int) -> Row:
    """Measure one sum."""
    parts = (Part(size, sum_bits(clients)), Part(0, 64))
    summing = Run(Session.of(b"benchmark", tuple(range(clients)), parts))
    masks = np.stack([Streams(client).bits("mask", size) for client in range(clients)])
    summing.values = {client: [masks[client], np.zeros(0, np.uint64)] for client in range(clients)}
    server, spent, passed = summing.server, dict.fromkeys(("clients", "server"), 0.0), dict.fromkeys(("up", "down"), 0)

    @contextmanager
    def charged(who: str) -> Iterator[None]:
        started = process_time()
        yield
        spent[who] += process_time() - started

    while True:
        stage = server.stage
        for client, message in summing.told.items():
            if stage is Stage.MASKED and client < missing:
                continue
            with charged("clients"):
                sent = summing.answer(client)
            with charged("server"):
                server.receive(client, sent)
            passed["up"] += len(sent)
            passed["down"] += len(message)
        if stage is Stage.REVEAL:
            break
        with charged("server"):
            summing.told = server.advance()
    with charged("server"):
        found = server.sum()[0]
    if not np.array_equal(found, masks[missing:].sum(axis=0, dtype=np.int64)):
        raise ArithmeticError("the secure sum is not the open one")
    return {
        "clients": clients,
        "missing": missing,
        "neighbours": summing.session.degree,
        "client ms": 1e3 * spent["clients"] / clients,
        "server s": spent["server"],
        "bpp up": 8 * passed["up"] / (size * clients),
        "bpp down, beside the broadcast": 8 * passed["down"] / (size * clients),
    }
