"""The command line. Torch is imported only by commands that compute."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from fedpm.cli import flower, model
from fedpm.cli.data import app as data
from fedpm.cli.privacy import app as privacy
from fedpm.cli.report import report
from fedpm.cli.run import keys_help, run
from fedpm.cli.study import app as study
from fedpm.errors import ConfigError, FedPMError


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


def command_line(*, keys: bool) -> typer.Typer:
    """Return the program with all of its commands; with ``keys`` the help of ``run`` lists those of all parts."""
    app = typer.Typer(
        name="fedpm",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(options)
    app.command(epilog=keys_help() if keys else None)(run)
    app.add_typer(model.app, name="model")
    app.add_typer(data)
    app.add_typer(privacy, name="privacy")
    app.add_typer(study)
    app.command()(report)
    app.add_typer(flower.app, name="flower")
    return app


def main() -> None:
    """Run the program; an error that the user can mend is one sentence, no traceback."""
    try:
        command_line(keys="--help" in sys.argv)()
    except FedPMError as error:
        print(f"fedpm: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        print(f"fedpm: {error.strerror or error}: {error.filename or 'while writing'}", file=sys.stderr)
        sys.exit(1)
