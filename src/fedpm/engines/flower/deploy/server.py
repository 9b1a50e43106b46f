"""The app that the SuperLink runs: the round loop, over Flower's Grid."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpm.config import Config, settings_of
from fedpm.engines.flower.deploy.settings import AppSettings
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
    settings = AppSettings.read(context.run_config)
    folder = Path(settings.out)

    def start(experiment: Experiment) -> Fleet:
        config = experiment.config
        return Fleet(grid, experiment.clients, limits_of(config), total=config.clients.total, say=_say)

    options: dict[str, Any] = {**settings.hooks(None), "on_round": _show(settings.config.rounds), "start": start}
    if (folder / "config.toml").is_file():
        check_continues(settings, folder)
        _say(f"continuing the run in {folder.resolve()}")
        result = rounds.resume(folder, flower=settings.config.flower, **options)
    else:
        result = rounds.run(settings.config, out=folder, **options)
    summary = result.summary
    _say(f"test accuracy {summary['accuracy']:.4f} ({summary['mode']}) after {summary['rounds']} rounds")
    _say(f"folder    {folder.resolve()}")


def check_continues(settings: AppSettings, folder: Path) -> None:
    """Refuse to continue a run with settings that would change its results."""
    opened = RunFolder.open(folder)
    opened.close()
    before, now = _deciding(opened.config()), _deciding(settings.build(None).config)
    changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if changed:
        raise ConfigError(
            f"app.out = {folder}: holds a run with other settings ({', '.join(changed)}); give another folder, or those"
        )


def _deciding(config: Config) -> dict[str, Any]:
    """Return the settings that decide results."""
    others = dict.fromkeys(("workers", "engine", "flower", "tensorboard"), True)
    return settings_of(config, {**others, "data": {"dir", "path"}})


def _show(total: int) -> Any:
    def show(record: Record) -> None:
        for sentence in (wording.line(record, total), *wording.complaints(record)):
            _say(sentence)

    return show


def _say(sentence: str) -> None:
    print(sentence, flush=True)
