"""Which clients the holder of a registered key may answer for.

The SuperLink knows a node's key and gives it an id, under which only the holder of that key can fetch and answer
messages. Which clients it is to host is written down here, beside Flower's own settings, when its key is registered.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedpm.engines.flower.deploy.commands import ask
from fedpm.engines.flower.node import hosted_clients
from fedpm.errors import ConfigError
from fedpm.files import append_durably, make_folder


def table() -> Path:
    """Return the file with a line for each node that was registered, in FLWR_HOME; the last line of a node holds."""
    home = os.environ.get("FLWR_HOME")  # as Flower has it; to ask Flower would take a second
    return Path(home or Path.home() / ".flwr") / "fedpm-nodes.jsonl"


def read_partition(text: str) -> tuple[int, int]:
    """Return I and N of I/N."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    partition, partitions = map(int, match.groups()) if match else (0, 0)
    if not partition < partitions:
        raise ConfigError(f"--partition {text}: should be I/N, such as 0/2, the first counted from 0")
    return partition, partitions


def register(key: Path, superlink: str | None, partition: int, partitions: int) -> int:
    """Tell a SuperLink a node's public key, write down which clients it may answer for, and return its id."""
    node = int(ask(["supernode", "register", str(key), *([] if superlink is None else [superlink])])["node-id"])
    public = " ".join(key.read_text().split()[:2])
    line = {"node": node, "partition": partition, "partitions": partitions, "key": key.name, "public": public}
    make_folder(table().parent)
    append_durably(table(), (json.dumps(line) + "\n").encode())
    return node


def owned_clients(total: int) -> Callable[[int], list[int]] | None:
    """Return what gives the clients of a node, of which there are ``total``; None where no node was ever bound."""
    if not table().exists():
        return None

    def owned(node: int) -> list[int]:
        bound = read_table(table()).get(node)  # anew each time: nodes are registered while a run goes on, too
        return [] if bound is None else hosted_clients(bound.partition, bound.partitions, total)

    return owned


@dataclass(frozen=True)
class Bound:
    """What a node's key was registered for; ``public`` is that key, empty in the lines of older releases."""

    partition: int
    partitions: int
    public: str


def read_table(file: Path) -> dict[int, Bound]:
    """Return the nodes that were registered, by their ids."""
    nodes: dict[int, Bound] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            partition = read_partition(f"{entry['partition']}/{entry['partitions']}")
            nodes[entry["node"]] = Bound(*partition, str(entry.get("public", "")))
        except (ValueError, TypeError, KeyError, ConfigError):
            raise ConfigError(
                f"{file}: line {number} is damaged; remove it, and register that node again: fedpm flower register"
            ) from None
    return nodes
