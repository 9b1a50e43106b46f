"""``fedpm run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedpm import config as configs
from fedpm.cli.options import Overrides, Preset, find_beside
from fedpm.config.explain import PARTS
from fedpm.errors import ConfigError, FedPMError, StoppedError
from fedpm.experiment.record import byte_size, headline, in_rounds, rounds_without_gain

if TYPE_CHECKING:
    from fedpm.experiment.observers import Round
    from fedpm.experiment.record import Summary
    from fedpm.experiment.result import Result

console = Console(highlight=False, markup=False)


def choices_help() -> str:
    """Return presets and names of parts for the end of the help page."""
    lines = [f"[bold]Presets[/bold]: {', '.join(configs.presets())}"]
    lines.append("[bold]Parts[/bold], by --set KEY=NAME; fedpm keys says more, and lists all other keys")
    lines += [f"[cyan]{key}[/cyan]: {', '.join(parts.names())}" for key, parts in PARTS.items()]
    lines.append("[bold]Example[/bold]: fedpm run --set rounds=5 --set clients.rho=0.5 --out runs/try")
    return "\n\n".join(lines)


def run(
    preset: Preset = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file, such as a run folder's config.toml.")] = None,
    set_: Overrides = None,
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
        if preset or config or out or device:
            raise ConfigError(
                "--resume DIR goes on with the settings of that run: give nothing beside it but --workers, --engine, "
                f"--data-dir, and --set {' and '.join(f'{key}=N' for key in sorted(configs.LENGTH))} to go on longer"
            )
        return _resume(resume, overrides)
    if preset and config:
        raise ConfigError("--preset and --config are two starting points: give only one of them")
    settings = configs.load(config or preset or "quickstart", overrides)
    folder = out or _unused(Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}")
    from fedpm.experiment import api

    find_beside([settings.task.loss, *settings.task.metrics])
    # once more: what is asked for is refused if data or parts say otherwise, and what a preset has is not
    asked = dict(map(configs.pair, overrides))
    _watched(folder, lambda: api.run(settings, out=folder, progress=True, **asked))


def _unused(folder: Path) -> Path:
    """Return the folder, or one beside it with a number: two runs may begin in one second."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(name for name in chain([folder], names) if not name.exists())


def _resume(folder: Path, overrides: list[str]) -> None:
    from fedpm.experiment import api

    settings, trained = dict(map(configs.pair, overrides)), list[int]()
    if (folder / "config.toml").is_file():
        task = configs.load(folder / "config.toml").task
        find_beside([task.loss, *task.metrics])

    def note(round: Round) -> None:
        trained.append(round["round"])

    result = _watched(folder, lambda: api.resume(folder, progress=True, on_round=note, **settings))
    if not trained:
        console.print(f"Nothing was trained: {_ended(result)}.", soft_wrap=True)


def _ended(result: Result) -> str:
    """Return why a run does not go on, and what would let it."""
    if result.summary["ended"] == "patience":
        idle = rounds_without_gain(result.rounds)
        last = "the last round of this run was" if idle == 1 else f"the last {idle} rounds of this run were"
        return (
            f"{last} no better on validation data, which ended it; to go on longer, add --set stop.patience=N, of "
            f"more than {idle}"
        )
    if result.summary["ended"] == "budget":
        return "this run has spent its privacy budget, and goes on no longer; start a new one, of which ε adds up"
    return f"this run had done its {in_rounds(result.summary['rounds'])} before; to go on longer, add --set rounds=N"


def _watched(folder: Path, start: Callable[[], Result]) -> Result:
    """Run, print the summary, and return the result."""
    try:
        result = start()
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted{_remedy(folder, 'the same command starts it')}") from None
    except OSError as error:
        remedy = _remedy(folder, "mend that, or choose another --out, and start again")
        raise FedPMError(f"{folder}: {error.strerror or error}{remedy}") from None
    summary = result.summary
    ratio = summary["parameters"] * 4 / summary["model_bytes"]
    mask = "" if summary["mode"] == "weights" else " mask"
    up, down, model = (byte_size(summary[key]) for key in ("uplink_bytes", "downlink_bytes", "model_bytes"))
    console.print(
        f"test {headline(summary, 4)} ({summary['mode']}{mask}) "
        f"after {_rounds(summary)} in {summary['seconds']:.0f} s\n"
        f"sent up   {up}, {summary['uplink_bpp']:.3f} bits per parameter and client{_paper(summary)}\n"
        f"sent down {down}, {summary['downlink_bpp']:.3f} bits per parameter and client\n"
        f"model     {model} for {summary['parameters']:,} parameters"
        f"{f', {ratio:.0f}× smaller than 32-bit weights' if ratio > 1 else ''}\n"
        f"{_privacy(summary)}folder    {folder}",
        soft_wrap=True,
    )
    return result


def _paper(summary: Summary) -> str:
    """Return what the paper's coding would have sent for the same masks."""
    bits = summary.get("uplink_paper_bpp")
    if bits is None or summary["mode"] == "weights":
        return ""
    return f" ({bits:.3f} by the paper's coding of the same masks, which sends 32 down)"


def _rounds(summary: Summary) -> str:
    """Return how many rounds there were, which of them the model is of, and whether patience ended them."""
    done, shipped = summary["rounds"], summary["round"]
    of = f"{shipped} of {done} rounds" if shipped < done else in_rounds(done)
    return of + (", the last ones no better on validation data," if summary["ended"] == "patience" else "")


def _privacy(summary: Summary) -> str:
    """Return a line on what the run guarantees, if anything."""
    if "privacy" not in summary:
        return ""
    spent = summary["privacy"]
    stopped = f", and so training stopped before round {summary['rounds'] + 1}" if summary["ended"] == "budget" else ""
    return (
        f"privacy   ε {spent['epsilon']:.3f} of {spent['budget']:g} spent at δ {spent['delta']:g}{stopped}; "
        f"neighbours: {spent['adjacency']}{'' if spent['secret'] else '; simulated: the noise follows from the seed'}\n"
    )


def _remedy(folder: Path, anew: str) -> str:
    """Return how to go on after a run ended early, ``anew`` if its folder was not begun: there is nothing to resume."""
    if not (folder / "config.toml").is_file():
        return f"; nothing was begun: {anew}"
    return f"; nothing that was saved is lost, continue with: fedpm run --resume {folder}"
