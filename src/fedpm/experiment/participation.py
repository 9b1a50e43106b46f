"""Who takes part in a round: drawn from the seed alone, so that it is known beforehand."""

from fedpm.config import Config
from fedpm.rng import Streams


def participants(config: Config, round: int) -> list[int]:
    """Return the clients of a round."""
    return Streams(config.seed).at(round).choice("clients", config.clients.total, config.clients.per_round)
