"""Whether memory grows over the rounds of a run."""

import resource
from pathlib import Path
from statistics import mean

from fedpm import rounds
from fedpm.bench import Row
from fedpm.config import parse

ROUNDS = 200


def run(count: int = ROUNDS) -> list[Row]:
    """Measure the memory that is in use after each of many short rounds."""
    used: list[int] = []
    config = parse(
        {
            "rounds": count,
            "workers": 1,
            "clients": {"total": 4, "sampled": 2},
            "data": {"train_examples": 80, "test_examples": 40},
            "local": {"epochs": 1},
        }
    )
    rounds.run(config, on_round=lambda record: used.append(resident()))
    quarters = [used[start * count // 4 : (start + 1) * count // 4] for start in range(4)]
    return [
        {
            "case": f"{count} rounds",
            "last / second quarter": mean(quarters[3]) / mean(quarters[1]),
            **{f"quarter {number} MB": mean(quarter) / 1e6 for number, quarter in enumerate(quarters, 1)},
        }
    ]


def resident() -> int:
    """Return the bytes of memory that this process has in use (Linux)."""
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
