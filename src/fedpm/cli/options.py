"""Options that several commands have, and what the Tab key offers."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer


def complete_preset(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets that begin so, each with what it is."""
    from fedpm.config import presets

    return [(name, about) for name, about in presets().items() if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return the keys that begin so, each with its meaning."""
    from fedpm.config import describe

    return [(f"{key}=", meaning) for key, _, meaning in describe() if key.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Return the keys and tables that begin so."""
    from fedpm.config import describe

    keys = [key for key, _, _ in describe()]
    tables = dict.fromkeys(key.partition(".")[0] for key in keys if "." in key)
    return [name for name in (*keys, *tables) if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Return the data sets that begin so."""
    from fedpm.data.catalog import SPECS

    return [name for name in ("digits", *SPECS) if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[tuple[str, str]]:
    """Return the studies that begin so, each with its title."""
    from fedpm.study.definition import studies

    return [(name, study.title) for name, study in studies().items() if name.startswith(incomplete)]


def find_beside(names: Iterable[str]) -> None:
    """Let Python find modules in the current folder, in worker processes too, if a name is one MODULE:FUNCTION.

    What is imported later could be hidden by files of that folder: call it when torch is there.
    """
    here = str(Path.cwd())
    if any(":" in name for name in names) and here not in sys.path:
        sys.path.insert(0, here)


Preset = Annotated[
    str | None,
    typer.Option(help="A ready configuration, by name (default: quickstart).", autocompletion=complete_preset),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key; fedpm keys lists them.", autocompletion=complete_setting
    ),
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the label (default: label).")]
Client = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: whose a row is (default: client).")]
