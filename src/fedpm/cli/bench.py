"""``fedpm bench``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpm.errors import ConfigError
from fedpm.files import write_atomically

BENCHMARKS = {
    "codec": "mask coders on one upload, beside xz and zstd on packed bits (M/s: million parameters a second)"
}


def bench(
    name: Annotated[str, typer.Argument(help="What to measure: codec.")] = "codec",
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this file, as JSON.")] = None,
) -> None:
    """Measure the library on this machine."""
    if name not in BENCHMARKS:
        raise ConfigError(f"bench {name}: there is no such benchmark; there are: {', '.join(BENCHMARKS)}")
    from fedpm.bench import codec

    rows = codec.run()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns, title=BENCHMARKS[name])
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    Console().print(table)
    if out is not None:
        write_atomically(out, (json.dumps({name: rows}, indent=2) + "\n").encode())


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
