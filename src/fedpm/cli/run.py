"""``fedpm run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedpm import config as configs
from fedpm.cli.progress import round_progress
from fedpm.errors import ConfigError, FedPMError

if TYPE_CHECKING:
    from fedpm.experiment.loop import Result
    from fedpm.experiment.observers import Observer
    from fedpm.experiment.record import Summary

console = Console()


def keys_help() -> str:
    """Return presets and keys for the end of the help page."""
    lines = ["[bold]Presets[/bold]", *(f"[cyan]{name}[/cyan]: {what}" for name, what in configs.presets().items())]
    lines.append("[bold]Keys[/bold] for --set and TOML files, with their defaults")
    for key, default, meaning in configs.describe():
        lines.append(f"[cyan]{key}[/cyan]{f' = {default}' if default else ''}: {escape(meaning)}")
    lines.append(
        "[bold]Example[/bold]: fedpm run --preset quickstart --set rounds=5 --set clients.rho=0.5 --out runs/try"
    )
    return "\n\n".join(lines)


def run(
    preset: Annotated[str | None, typer.Option(help="A ready configuration, by name (default: quickstart).")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the keys below.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, new or empty (default: runs/DATE-TIME).")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the run of this folder.")] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that train clients; results never change.")] = None,
    engine: Annotated[str | None, typer.Option(help="What runs the clients: inprocess, flower.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets' files (data.dir).")] = None,
) -> None:
    """Train: sample clients, broadcast, train, aggregate, evaluate; round after round."""
    overrides = list(set_ or [])
    flags = {"workers": workers, "engine": engine, "device": device}
    overrides += [f"{key}={value}" for key, value in flags.items() if value is not None]
    if data_dir is not None:
        overrides.append(f"data.dir={json.dumps(str(data_dir))}")  # quoted: a folder may be called 2024
    if resume is not None:
        if preset or config or out or set_ or engine or device or data_dir:
            raise ConfigError("--resume DIR takes the settings of that run: give no option beside it but --workers")
        return _resume(resume, overrides)
    if preset and config:
        raise ConfigError("--preset and --config are two starting points: give only one of them")
    settings = configs.load(config or preset or "quickstart", overrides)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}"
    from fedpm.experiment import api

    _watched(folder, settings.rounds, lambda show: api.run(settings, out=folder, on_round=show))


def _resume(folder: Path, overrides: list[str]) -> None:
    from fedpm.experiment import api
    from fedpm.experiment.folder import RunFolder

    with RunFolder.open(folder) as opened:
        rounds = configs.load(opened.config_file).rounds
    workers = configs.load(None, overrides).workers if overrides else None
    _watched(folder, rounds, lambda show: api.resume(folder, workers=workers, on_round=show))


def _watched(folder: Path, rounds: int, start: Callable[[Observer], Result]) -> None:
    """Run with a progress display, then print the summary."""
    try:
        with round_progress(rounds, console) as show:
            result = start(show)
    except KeyboardInterrupt:
        raise FedPMError(f"interrupted{_remedy(folder)}") from None
    except OSError as error:
        raise FedPMError(f"{folder}: {error.strerror or error}{_remedy(folder)}") from None
    summary = result.summary
    ratio = summary["parameters"] * 4 / summary["model_bytes"]
    mask = "" if summary["mode"] == "weights" else " mask"
    console.print(
        f"test accuracy {summary['accuracy']:.4f} ({summary['mode']}{mask}) "
        f"after {summary['rounds']} rounds in {summary['seconds']:.0f} s\n"
        f"sent up   {_size(summary['uplink_bytes'])}, {summary['uplink_bpp']:.3f} bits per parameter and client\n"
        f"sent down {_size(summary['downlink_bytes'])}, {summary['downlink_bpp']:.3f} bits per parameter and client\n"
        f"model     {_size(summary['model_bytes'])} for {summary['parameters']:,} parameters"
        f"{f', {ratio:.0f}× smaller than 32-bit weights' if ratio > 1 else ''}\n"
        f"{_privacy(summary, rounds)}folder    {folder}",
        highlight=False,
        soft_wrap=True,
    )


def _privacy(summary: Summary, rounds: int) -> str:
    """Return a line on what the run guarantees, if anything."""
    if "privacy" not in summary:
        return ""
    spent = summary["privacy"]
    stopped = f", and so training stopped before round {summary['rounds'] + 1}" if summary["rounds"] < rounds else ""
    return (
        f"privacy   ε {spent['epsilon']:.3f} of {spent['budget']:g} spent at δ {spent['delta']:g}{stopped}; "
        f"neighbours: {spent['adjacency']}{'' if spent['secret'] else '; simulated: the noise follows from the seed'}\n"
    )


def _remedy(folder: Path) -> str:
    """Return how to go on after a run ended early; before its folder was begun there is nothing to resume."""
    if not (folder / "config.toml").is_file():
        return "; nothing was begun: mend that, or choose another --out, and start again"
    return f"; nothing that was saved is lost, continue with: fedpm run --resume {folder}"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
