"""A client's work, as it is asked for and answered on Flower. Nothing here imports Flower, or torch."""

from dataclasses import dataclass, field

Memory = dict[int, bytes]
"""What a node keeps of the last two rounds' broadcasts: the clients of a node may be a round apart."""


@dataclass(frozen=True)
class Request:
    """A broadcast for one client, and the seconds that it has to answer."""

    client: int
    round: int
    limit: float
    broadcast: bytes


@dataclass(frozen=True)
class Answer:
    """A client's upload, or what kept it from making one."""

    payload: bytes = b""
    metrics: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    reason: str = ""


def hosted(partition: int, partitions: int, total: int) -> list[int]:
    """Return the clients of a node, which is partition ``partition`` of ``partitions``."""
    return list(range(partition, total, partitions))
