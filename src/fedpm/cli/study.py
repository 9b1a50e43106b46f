"""``fedpm study``: what studies there are, and running one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpm.cli.options import Overrides, complete_study, find_beside
from fedpm.cli.parsing import Group, SettingsCommand
from fedpm.cli.progress import study_progress
from fedpm.errors import FedPMError, StoppedError

if TYPE_CHECKING:
    from fedpm.study.definition import Study

app = typer.Typer(
    name="study", cls=Group, help="Grids of runs: the paper's tables and figures, or your own.", no_args_is_help=True
)
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)


@app.command("list")
def list_() -> None:
    """What studies there are, and how many runs each has."""
    from fedpm.study.definition import load, studies

    table = Table("name", "in the paper", "what it runs", "small", "paper", box=None, pad_edge=False)
    for name, file in studies().items():
        sizes = {scale: load(name, scale) for scale in file.scale}
        counts = {scale: f"{len(study.runs(study.seeds))} runs" for scale, study in sizes.items()}
        table.add_row(name, file.paper, file.title, counts.get("small", ""), counts.get("paper", ""))
    console.print(table)


@app.command(cls=SettingsCommand)
def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A study that fedpm study list shows, or a TOML file.",
            autocompletion=complete_study,
        ),
    ],
    scale: Annotated[
        str | None, typer.Option(help="small: minutes on 2 cores; paper: as in the paper, on a GPU.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each combination (default: the study's).")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Only this row ('fedpm bits', say); repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study (default: runs/NAME-SCALE).")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: one a core).")] = None,
    set_: Overrides = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets' files (data.dir).")] = None,
) -> None:
    """Run what is not yet done of a study; the same command continues one that was interrupted."""
    from fedpm.study import definition
    from fedpm.study.overview import overview
    from fedpm.study.results import collect

    study = definition.load(name, scale, set_ or [])
    folder = out or Path("runs") / "-".join(filter(None, (Path(name).stem, study.scale)))
    place = [] if data_dir is None else [f"data.dir={json.dumps(str(data_dir.resolve()))}"]
    count = processes or _fitting(study)
    runs = study.runs(seeds or study.seeds, [*place, *(["workers=1"] if count > 1 else [])])
    runs = definition.select(runs, only or [], name)
    from fedpm.study.runner import prepare, run_all

    find_beside(name for one in runs for name in (one.config.task.loss, *one.config.task.metrics))
    prepare(folder, study)
    try:
        with study_progress([one.config.rounds for one in runs], console) as show:
            failures = run_all(runs, folder, count, show)
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; what is done is in {folder}, and the same command continues") from None
    if len(failures) < len(runs):
        head, rows = overview(collect([folder])[0])
        table = Table(*head, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(f"folder    {folder}\nreport    fedpm report {folder}", soft_wrap=True)
    if failures:
        lines = "".join(f"\n  {one}: {reason}" for one, reason in failures.items())
        raise FedPMError(f"{len(failures)} of {len(runs)} runs failed; the same command tries them again{lines}")


def _fitting(study: Study) -> int:
    """Return how many runs at a time fill the machine: one a core, or one on an accelerator."""
    from fedpm.experiment.build import cores
    from fedpm.training.device import choose_device

    return cores() if choose_device(study.settings.get("device", "auto")).type == "cpu" else 1
