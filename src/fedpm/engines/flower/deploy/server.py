"""The app that the SuperLink runs: the round loop, over Flower's Grid."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpm.config import Config, settings_of
from fedpm.engines.flower.deploy.settings import Settings
from fedpm.engines.flower.grid import Fleet
from fedpm.errors import ConfigError
from fedpm.experiment import loop as rounds
from fedpm.experiment import wording
from fedpm.experiment.build import Experiment, limits_of
from fedpm.experiment.folder import Record, RunFolder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or continue what an earlier run left in ``app.out``: a run that was killed is simply started again."""
    settings = Settings.read(context.run_config)
    folder = Path(settings.out)

    def start(experiment: Experiment) -> Fleet:
        config = experiment.config
        return Fleet(grid, experiment.clients, config.clients.total, limits_of(config), say=_say)

    how: dict[str, Any] = {**settings.own(None), "on_round": _show(settings.config.rounds), "start": start}
    if (folder / "config.toml").is_file():
        _same(settings, folder)
        _say(f"continuing the run in {folder.resolve()}")
        result = rounds.resume(folder, flower=settings.config.flower, **how)
    else:
        result = rounds.run(settings.config, out=folder, **how)
    summary = result.summary
    _say(f"test accuracy {summary['accuracy']:.4f} ({summary['mode']}) after {summary['rounds']} rounds")
    _say(f"folder    {folder.resolve()}")


def _same(settings: Settings, folder: Path) -> None:
    """Refuse to continue a run with other settings; how long to wait for clients may change."""
    opened = RunFolder.open(folder)
    opened.close()
    there, here = _results(opened.config()), _results(settings.build(None).config)
    other = sorted(key for key in {*there, *here} if there.get(key) != here.get(key))
    if other:
        raise ConfigError(
            f"app.out = {folder}: holds a run with other settings ({', '.join(other)}); give another folder, or those"
        )


def _results(config: Config) -> dict[str, Any]:
    """Return the settings that a result depends on."""
    return settings_of(config, {"workers": True, "engine": True, "flower": True, "data": {"dir", "path"}})


def _show(total: int) -> Any:
    def show(record: Record) -> None:
        for sentence in (wording.line(record, total), *wording.complaints(record)):
            _say(sentence)

    return show


def _say(sentence: str) -> None:
    print(sentence, flush=True)
