"""Who takes part in a round: drawn from the seed alone, so that it is known beforehand."""

from collections import Counter
from dataclasses import dataclass

from fedpm.rng import Streams


@dataclass(frozen=True)
class Participation:
    """``per_round`` of ``clients`` clients, drawn anew for each round."""

    seed: int
    clients: int
    per_round: int

    def of(self, round: int) -> list[int]:
        """Return the clients of a round."""
        return Streams(self.seed).at(round).choice("clients", self.clients, self.per_round)

    def most(self, rounds: int) -> int:
        """Return in how many of the first rounds the client that is drawn most takes part."""
        if self.per_round == self.clients:
            return rounds
        counts = Counter(client for round in range(1, rounds + 1) for client in self.of(round))
        return max(counts.values())
