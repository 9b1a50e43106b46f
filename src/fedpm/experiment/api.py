"""``fedpm.run`` and ``fedpm.resume``."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

from torch import nn

from fedpm.config import Config, load
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Engine
from fedpm.errors import ConfigError
from fedpm.experiment.build import Experiment, build, start_engine
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.loop import Result, train
from fedpm.experiment.observers import Observer
from fedpm.registry import Settings


def run(
    config: Config,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Collection[str] = (),
    remote: bool = False,
    out: Path | str | None = None,
    on_round: Observer = lambda record: None,
    start: Callable[[Experiment], Engine] = start_engine,
) -> Result:
    """Train, and return the result; with ``out`` also leave a run folder that can be resumed.

    Args:
        config: the settings.
        net: a network of your own, instead of ``model.name``.
        data: a data set of your own (``fedpm.dataset``), instead of ``data.name``.
        frozen: parameters or modules of ``net`` that keep their value, unmasked.
        remote: clients hold data of their own, and ``data`` is what the server chooses and tests on.
        out: the run folder; it must be new or empty.
        on_round: called with the record of each round as it ends.
        start: starts another engine than ``config.engine`` names.
    """
    experiment = build(config, net=net, data=data, frozen=frozen, remote=remote)
    if out is None:
        return train(experiment, None, on_round, start)
    with RunFolder.create(Path(out), experiment.config_toml) as folder:
        return train(experiment, folder, on_round, start)


def resume(
    folder: Path | str,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Collection[str] = (),
    workers: int | Literal["auto"] | None = None,
    engine_settings: Settings | None = None,
    remote: bool = False,
    on_round: Observer = lambda record: None,
    start: Callable[[Experiment], Engine] = start_engine,
) -> Result:
    """Continue the run of a folder; it ends in the same model as an undisturbed run.

    ``workers`` and ``engine_settings``, which change no result, may be others than before.
    """
    with RunFolder.open(Path(folder)) as opened:
        config = load(opened.config_file)
        changes = {"workers": workers, config.engine: engine_settings}
        config = config.model_copy(update={key: value for key, value in changes.items() if value is not None})
        check_resumable(config)
        experiment = build(config, net=net, data=data, frozen=frozen, remote=remote)
        return train(experiment, opened, on_round, start)


def check_resumable(config: Config) -> None:
    """Refuse to go on where a round that was cut short would be released a second time."""
    if config.privacy.secret:
        raise ConfigError(
            "privacy.secret = true: a round that was cut short would be repeated with fresh noise, and so be released "
            "twice and counted once; start a new run, and add up what both cost"
        )
