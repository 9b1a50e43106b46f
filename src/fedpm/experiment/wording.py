"""How a round is told in a line, wherever it is told."""

from collections.abc import Mapping
from typing import Any


def figures(record: Mapping[str, Any]) -> str:
    """Return test accuracy, bits per parameter and client both ways, and the ε spent, if there is a budget."""
    up, down = record["uplink_bpp"], record["downlink_bpp"]
    spent = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
    return f"accuracy {record['accuracy']:.3f}  up {up:.3f} bpp  down {down:.3f} bpp{spent}"


def line(record: Mapping[str, Any], rounds: int) -> str:
    """Return a round as a line of a log."""
    return f"round {record['round']}/{rounds}  {figures(record)}  {record['seconds']:.1f} s"


def complaints(record: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each client whose upload was left out."""
    rejected = record["rejected"].items()
    return [f"round {record['round']}: left out the upload of client {client}: {reason}" for client, reason in rejected]
