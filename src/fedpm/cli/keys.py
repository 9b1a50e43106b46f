"""``fedpm keys``."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpm.cli.options import Preset, complete_key
from fedpm.errors import ConfigError, choices

console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)


def keys(
    prefix: Annotated[
        str, typer.Argument(help="Only keys that begin so, such as local or data.", autocompletion=complete_key)
    ] = "",
    preset: Preset = None,
) -> None:
    """Every key for --set and TOML files, with its default and what it means; with --preset those that it sets."""
    from fedpm.config import describe, flattened, load

    described = describe()
    if preset is not None:
        values = flattened(load(preset).model_dump(exclude_unset=True))
        described = [(key, str(values[key]), meaning) for key, _, meaning in described if key in values]
    found = [row for row in described if row[0].startswith(prefix)]
    found = found or [row for row in described if row[0].partition(".")[2].startswith(prefix)]
    if not found:
        tables = dict.fromkeys(key.partition(".")[0] for key, _, _ in described)
        raise ConfigError(f"{prefix}: no key begins so; {choices(prefix, list(tables))}")
    table = Table("key", preset or "default", "meaning", box=None, pad_edge=False)
    before = found[0][0]
    for key, default, meaning in found:
        if "." in key and key.partition(".")[0] != before.partition(".")[0]:
            table.add_row()
        table.add_row(key, default, meaning)
        before = key
    console.print(table)
    start = flattened(load("quickstart").model_dump(exclude_unset=True))
    other = [f"{key} = {start[key]}" for key, default, _ in found if key in start and str(start[key]) != default]
    if other and preset is None:
        console.print(
            f"\nWithout --preset and --config, fedpm run starts from the preset quickstart: {', '.join(other)}"
        )
