"""``fedpm keys``."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpm.cli.options import complete_key
from fedpm.errors import ConfigError, choices

console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)


def keys(
    prefix: Annotated[
        str, typer.Argument(help="Only keys that begin so, such as local or data.", autocompletion=complete_key)
    ] = "",
) -> None:
    """Every key for --set and TOML files, with its default and what it means."""
    from fedpm.config import describe

    described = describe()
    found = [row for row in described if row[0].startswith(prefix)]
    if not found:
        tables = dict.fromkeys(key.partition(".")[0] for key, _, _ in described)
        raise ConfigError(f"{prefix}: no key begins so; {choices(prefix, list(tables))}")
    table = Table("key", "default", "meaning", box=None, pad_edge=False)
    before = found[0][0]
    for key, default, meaning in found:
        if "." in key and key.partition(".")[0] != before.partition(".")[0]:
            table.add_row()
        table.add_row(key, default, meaning)
        before = key
    console.print(table)
