"""The command line. Torch is imported only by commands that compute."""

import signal
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, TextIO

import typer

from fedpm.cli import flower, model
from fedpm.cli.data import app as data
from fedpm.cli.keys import keys
from fedpm.cli.parsing import Group, SettingsCommand
from fedpm.cli.privacy import app as privacy
from fedpm.cli.report import report
from fedpm.cli.run import choices_help, run
from fedpm.cli.study import app as study
from fedpm.errors import ConfigError, FedPMError, StoppedError, printable

_CODES = {ConfigError: 2, StoppedError: 130}
"""Exit codes of errors, 1 for all others; 130 is what shells have for a program that Ctrl-C ended, 143 for SIGTERM."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedpm {version('fedpm')}")
        raise typer.Exit


def options(
    version_: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning at a fraction of a bit per parameter."""


def command_line(*, helping: bool) -> typer.Typer:
    """Return the program with all of its commands; if ``helping``, the help of ``run`` names all parts."""
    app = typer.Typer(
        name="fedpm",
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(options)
    app.command(cls=SettingsCommand, epilog=choices_help() if helping else None)(run)
    app.command()(keys)
    app.add_typer(model.app, name="model")
    app.add_typer(data)
    app.add_typer(privacy, name="privacy")
    app.add_typer(study)
    app.command()(report)
    app.add_typer(flower.app, name="flower")
    return app


def _tell(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning of this package as a sentence: the line of code from which it came says nothing to a user."""
    own = Path(filename).is_relative_to(Path(__file__).parent.parent)
    text = (
        f"fedpm: warning: {printable(str(message))}\n"
        if own
        else warnings.formatwarning(message, category, filename, lineno, line)
    )
    (file or sys.stderr).write(text)


def main() -> None:
    """Run the program; what the user can mend is one sentence, no traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _tell
        _main()


def _terminate(number: int, frame: FrameType | None) -> None:
    """End as after Ctrl-C, with a last line on how to go on: a scheduler or a container sends SIGTERM."""
    _CODES[StoppedError] = 128 + number
    interrupt = signal.getsignal(signal.SIGINT)
    (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)


def _main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        command_line(helping="--help" in sys.argv)(prog_name="fedpm")
    except FedPMError as error:
        for line in printable(str(error)).splitlines():
            print(line if line.startswith(" ") else f"fedpm: {line}", file=sys.stderr)
        sys.exit(next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1))
    except OSError as error:
        sentence = f"fedpm: {error.strerror or error}: {error.filename or 'while writing'}"
        print(printable(sentence), file=sys.stderr)
        sys.exit(1)
