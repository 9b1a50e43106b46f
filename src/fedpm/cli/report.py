"""``fedpm report``."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedpm.errors import StoppedError, require

console = Console(highlight=False, markup=False, soft_wrap=True)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of studies or of runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report (default: report in the first DIR).")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Only this row of a study ('fedpm bits', say); repeatable.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Make one page of figures and tables, and files of each: PNG, SVG, PDF; CSV, LaTeX."""
    require("report", "a report", "matplotlib")
    from fedpm.report.page import write

    folder = out or folders[0] / "report"
    try:
        page = write(folders, folder, only or ())
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {folder} is not complete, and the same command makes it anew") from None
    console.print(f"page      {page}\nbeside it figures as PNG, SVG and PDF, tables as CSV and LaTeX")
    if open_:
        webbrowser.open(page.resolve().as_uri())
