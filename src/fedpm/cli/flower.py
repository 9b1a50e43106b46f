"""``fedpm flower``."""

import re
from pathlib import Path
from typing import Annotated

import typer

from fedpm import config as configs
from fedpm.cli.options import Overrides, Preset
from fedpm.cli.parsing import Group, SettingsCommand
from fedpm.errors import ConfigError

app = typer.Typer(
    cls=Group, help="Train on a fleet of machines, with Flower (docs/deploying.md).", no_args_is_help=True
)

_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}
_COMMANDS = {"superlink": "flower-superlink", "supernode": "flower-supernode", "flwr": "flwr"}


@app.command(cls=SettingsCommand)
def init(
    folder: Annotated[Path, typer.Argument(help="The app folder, new or empty.")],
    preset: Preset = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the keys of fedpm run.")] = None,
    set_: Overrides = None,
) -> None:
    """Write an app folder that Flower runs, with hooks for your own network and data."""
    if preset and config:
        raise ConfigError("--preset and --config are two starting points: give only one of them")
    settings = configs.load(config or preset or "quickstart", set_ or [])
    from fedpm.engines.flower.deploy.folder import init

    init(folder, settings)
    print(f"{folder} is ready: see {folder / 'README.md'}; run it with: fedpm flower run {folder} SUPERLINK")


@app.command(cls=SettingsCommand)
def run(
    folder: Annotated[Path, typer.Argument(help="The app folder.")],
    superlink: Annotated[str | None, typer.Argument(help="A connection in Flower's config.toml.")] = None,
    set_: Overrides = None,
) -> None:
    """Submit an app to a SuperLink and follow it to its end; a run that fails ends with exit code 1."""
    from fedpm.engines.flower.deploy.commands import run

    run(folder, superlink, set_ or [])


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where to write them; new or empty.")],
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the SuperLink.")] = None,
    nodes: Annotated[int, typer.Option(min=0, help="How many SuperNodes get a pair of keys.")] = 2,
    days: Annotated[int, typer.Option(min=1, help="For how long the certificates hold.")] = 30,
) -> None:
    """Make a test authority, a certificate for the SuperLink, and keys for SuperNodes."""
    from fedpm.engines.flower.environment import require_flower

    require_flower()
    from fedpm.engines.flower.deploy.certificates import make

    for file in make(folder, host or ["127.0.0.1", "localhost"], nodes, days):
        print(file)


@app.command()
def register(
    key: Annotated[Path, typer.Argument(help="The node's public key, such as keys/node-0.pub.")],
    partition: Annotated[str, typer.Option(metavar="I/N", help="Whom it hosts: clients I, I+N, I+2N, and so on.")],
    superlink: Annotated[str | None, typer.Argument(help="A connection in Flower's config.toml.")] = None,
) -> None:
    """Register a SuperNode's key with a SuperLink, and bind it to its clients: it can answer for no others."""
    from fedpm.engines.flower.environment import require_flower

    require_flower()
    from fedpm.engines.flower.deploy import nodes

    first, step = nodes.read_partition(partition)
    node = nodes.register(key, superlink, first, step)
    print(f"node {node} is registered for partition {partition}: see {nodes.table()}")


@app.command()
def gate(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where SuperNodes reach the gate.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink, on an address of its own.")],
    keys: Annotated[Path, typer.Option(help="A folder with ca.pem, server.pem and server.key.")],
    largest: Annotated[int, typer.Option(metavar="MB", min=1, help="The largest message of a SuperNode.")] = 64,
) -> None:
    """Let SuperNodes through to a SuperLink, and nobody else: neither runs nor keys can be submitted here."""
    for option, address in (("--listen", listen), ("--superlink", superlink)):
        if not re.fullmatch(r"[^\s:]+:[0-9]{1,5}", address):
            raise ConfigError(f"{option} {address}: should be HOST:PORT, such as 0.0.0.0:9443")
    missing = [name for name in ("ca.pem", "server.pem", "server.key") if not (keys / name).is_file()]
    if missing:
        raise ConfigError(f"--keys {keys}: has no {', '.join(missing)}; make them with: fedpm flower certificates")
    from fedpm.engines.flower.environment import require_flower

    require_flower()
    from fedpm.engines.flower.deploy.gate import serve

    serve(listen, superlink, keys, largest * 1_000_000)


def _through(name: str, command: str) -> None:
    """Add a command of Flower's own, which takes all arguments as they are."""

    @app.command(name, context_settings=_THROUGH, add_help_option=False)
    def flower(context: typer.Context) -> None:
        from fedpm.engines.flower.deploy.commands import execute

        execute(command, context.args)

    flower.__doc__ = f"Flower's {command}, without telemetry, update checks or installations."


for _name, _command in _COMMANDS.items():
    _through(_name, _command)
