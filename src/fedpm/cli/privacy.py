"""``fedpm privacy``: what privacy costs, in ε and in error."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpm import config as configs
from fedpm.cli.options import Overrides, Preset
from fedpm.cli.parsing import Group, SettingsCommand
from fedpm.errors import ArtifactError, ConfigError, require
from fedpm.files import make_folder, write_atomically

app = typer.Typer(cls=Group, help="What differential privacy costs, in ε and in error.", no_args_is_help=True)
console = Console()


@app.command()
def curve(
    out: Annotated[Path, typer.Option(help="New folder for curve.csv, curve.png and curve.svg.")] = Path(
        "privacy-curve"
    ),
    clients: Annotated[int, typer.Option(help="N.")] = 100,
    d: Annotated[int, typer.Option("--d", help="Parameters of a mask.")] = 5,
    c: Annotated[float, typer.Option("--c", help="Probabilities are kept between c and 1 − c.")] = 0.2,
    spread: Annotated[float, typer.Option(help="0: all clients hold one mask; 1: each has its own.")] = 0.0,
    delta: Annotated[float | None, typer.Option(help="δ (default: 1/N²).")] = None,
    points: Annotated[int, typer.Option(help="Size of the correction table, Q.")] = 1000,
    noise: Annotated[str, typer.Option(help="analytic, or the paper's classical, right only for ε < 1.")] = "analytic",
    epsilon: Annotated[str, typer.Option(help="Values of ε, with commas.")] = "0.5,1,2,3,4,6,8,10,15,20,30,50,100",
    repetitions: Annotated[int, typer.Option(help="Over which mean and deviation are taken.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Names every draw.")] = 0,
) -> None:
    """Estimate a mean of noised masks (Appendix C): error against ε, as the paper draws it and by exact account."""
    if (out / "curve.csv").exists():
        raise ArtifactError(f"{out} holds a curve already: choose another --out")
    values = _numbers(epsilon)
    require("report", "the picture of a curve", "matplotlib")
    from fedpm.privacy.estimation import Estimation
    from fedpm.privacy.figure import draw, picture

    study = Estimation(clients, d, c, spread, delta, points, noise, repetitions, seed)
    rows = study.curve(values)
    make_folder(out)
    title = (
        f"{clients} clients, d = {d}, θ in [{c}, {1 - c:g}], spread {spread:g}, δ = {study.target_delta:g}, "
        f"{noise} noise, mean ± deviation of {repetitions}"
    )
    figure = draw(rows, title)
    for kind in ("png", "svg"):
        write_atomically(out / f"curve.{kind}", picture(figure, kind))
    write_atomically(out / "curve.csv", _csv(rows))
    shown = ("epsilon", "epsilon_paper", "epsilon_amplified", "epsilon_release", "sigma")
    table = Table(
        *(name.replace("epsilon", "ε").replace("_", " ") for name in shown), "error", "table", "exact", title=title
    )
    for row in rows:
        figures = [f"{row[name]:.3f}" for name in shown]
        table.add_row(*figures, *(f"{row[f'error_{name}']:.4f}" for name in ("noise", "table", "exact")))
    console.print(table)
    silent = sum(row["error_no_noise"] for row in rows) / len(rows)
    console.print(f"error without noise {silent:.4f}; wrote {out}/curve.csv, .png, .svg", highlight=False)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--epsilon {text}: should be numbers with commas, such as 1,3,8") from None


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


@app.command(cls=SettingsCommand)
def account(
    preset: Preset = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file, such as a run folder's config.toml.")] = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this file, as JSON.")] = None,
) -> None:
    """Say what ε a training configuration costs, before any training."""
    if preset and config:
        raise ConfigError("--preset and --config are two starting points: give only one of them")
    settings = configs.load(config or preset or "quickstart", set_ or [])
    if settings.privacy.unit == "none":
        raise ConfigError(
            "privacy.unit = 'none': this configuration promises nothing, whatever its masks look like; "
            "try --set privacy.unit=example --set privacy.epsilon=8"
        )
    from fedpm.data.participation import Participation
    from fedpm.experiment.settle import guarantee_of

    guarantee = guarantee_of(settings)
    if guarantee is None:
        raise ConfigError(f"privacy.unit = {settings.privacy.unit!r} needs privacy.epsilon, such as 8")
    clients = settings.clients
    most = Participation(settings.seed, clients.total, clients.per_round).most(settings.rounds)
    costs = guarantee.account(settings.rounds, most)
    for key, value in costs.items():
        if key != "after":
            console.print(
                f"[bold]{key}[/bold]: {f'{value:.6g}' if isinstance(value, float) else escape(str(value))}",
                highlight=False,
            )
    table = Table("rounds a client takes part in", "ε", box=None)
    for rounds, spent in costs["after"].items():
        table.add_row(rounds, f"{spent:.3f}")
    console.print(table)
    if out is not None:
        write_atomically(out, (json.dumps(costs, indent=2) + "\n").encode())
