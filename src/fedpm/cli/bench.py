"""``fedpm bench``."""

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpm.errors import ConfigError
from fedpm.files import write_atomically

BENCHMARKS = {
    "startup": "what a user waits for at first",
    "step": "a masked training step beside a dense one (processor time of one core)",
    "round": "a whole round beside its bare steps, and beside research code (processor time of one core)",
    "workers": "two worker processes beside one, and beside two threads (by the clock)",
    "codec": "mask coders on one upload, beside xz and zstd on packed bits (M/s: million parameters a second)",
    "server": "decoding and adding up uploads, and sampling clients (processor time of one core)",
    "memory": "memory in use over many short rounds",
}


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"What to measure: {', '.join(BENCHMARKS)}.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this file, as JSON.")] = None,
) -> None:
    """Measure the library on this machine: all of it, or what is named. All of it takes about 20 minutes."""
    for name in names or ():
        if name not in BENCHMARKS:
            raise ConfigError(f"bench {name}: there is no such benchmark; there are: {', '.join(BENCHMARKS)}")
    found = {}
    for name in names or BENCHMARKS:
        found[name] = import_module(f"benchmarks.cases.{name}").run()
        columns = list(dict.fromkeys(column for row in found[name] for column in row))
        table = Table(*columns, title=f"{name}: {BENCHMARKS[name]}")
        for row in found[name]:
            table.add_row(*(_cell(row.get(column, "")) for column in columns))
        Console().print(table)
        if out is not None:
            write_atomically(out, (json.dumps(found, indent=2) + "\n").encode())


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
