"""What server and clients of one secure sum agree on before it starts."""

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import comb

from fedpm.errors import ConfigError
from fedpm.secure.vectors import Part

EXPOSED = 2.0**-40
"""Chance, at most, that colluders learn more than the sum of the others."""
SPOILED = 2.0**-20
"""Chance, at most, that clients that go missing spoil a sum."""


@dataclass(frozen=True)
class Session:
    """One secure sum: ``context`` names run and round, ``clients`` are those asked, ``parts`` what they sum.

    Every client shares its secrets among itself and ``degree`` neighbours, of which ``threshold`` must stay to the end.
    """

    context: bytes
    clients: tuple[int, ...]
    parts: tuple[Part, ...]
    degree: int
    threshold: int

    @classmethod
    def of(cls, context: bytes, clients: tuple[int, ...], parts: tuple[Part, ...]) -> "Session":
        """Return the session with the usual graph, and the least threshold above half of those who hold a secret."""
        k = degree(len(clients))
        return cls(context, clients, parts, k, (k + 1) // 2 + 1)

    def __post_init__(self) -> None:
        count, holders = len(self.clients), self.degree + 1
        if count < 2 or list(self.clients) != sorted({c for c in self.clients if 0 <= c < 2**32}):
            raise ConfigError(
                f"a secure sum of clients {self.clients}: give two or more, ascending, from 0 to 2^32 - 1"
            )
        if not 1 <= self.degree < count or (self.degree % 2 and holders != count):
            raise ConfigError(f"{self.degree} neighbours of {count} clients: use {count - 1}, or an even number below")
        if not holders < 2 * self.threshold <= 2 * holders:  # of no client can both secrets be had from honest halves
            raise ConfigError(
                f"threshold {self.threshold} of {holders} clients that hold a secret: use more than half, at most all"
            )

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that differ if anything agreed on does; they stand in every message and enter every key."""
        numbers = (len(self.context), len(self.clients), len(self.parts), self.degree, self.threshold)
        sizes = [number for part in self.parts for number in (part.size, part.bits)]
        words = struct.pack(f"<{5 + len(self.clients) + len(sizes)}I", *numbers, *self.clients, *sizes)
        return sha256(b"fedpm secure sum 1" + words + self.context).digest()[:16]

    @cached_property
    def _ring(self) -> list[int]:
        """The clients in an order that none of them chose."""
        return sorted(self.clients, key=lambda client: sha256(self.digest + struct.pack("<I", client)).digest())

    @cached_property
    def _place(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._ring)}

    def neighbours(self, client: int) -> frozenset[int]:
        """Return whom a client shares pads and secrets with: the nearest on the ring, as many on either side."""
        if self.degree + 1 == len(self.clients):
            return frozenset(self.clients) - {client}
        place, side = self._place[client], self.degree // 2
        steps = [step for step in range(-side, side + 1) if step]
        return frozenset(self._ring[(place + step) % len(self._ring)] for step in steps)


def degree(clients: int, colluding: float = 0.1, missing: float = 0.1) -> int:
    """Return the least sufficient number of neighbours, O(log K), if these shares of the clients collude, go missing.

    As in Bell et al. (2020), section 3: no client has a threshold of colluders around it, the others stay connected (a
    ring falls apart only where half a neighbourhood in a row is gone), and enough holders of every secret stay.
    """
    bad, gone = round(colluding * clients), round(missing * clients)
    for k in range(2, clients - 1, 2):
        threshold = (k + 1) // 2 + 1
        exposed = _tail(clients - 1, bad, k, threshold) + (colluding + missing) ** (k // 2)
        spoiled = _tail(clients - 1, gone, k, k + 1 - threshold)
        if clients * exposed <= EXPOSED and clients * spoiled <= SPOILED:
            return k
    return clients - 1


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return the chance of ``least`` or more marked ones among those drawn (hypergeometric)."""
    ways = sum(comb(marked, i) * comb(population - marked, drawn - i) for i in range(least, drawn + 1))
    return ways / comb(population, drawn)
