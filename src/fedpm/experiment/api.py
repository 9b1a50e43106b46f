"""``fedpm.run`` and ``fedpm.resume``."""

import tomllib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedpm.children import stop_import
from fedpm.config import LENGTH, Base, Config, changes_results, check_used, flattened, load
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Engine
from fedpm.errors import ArtifactError, ConfigError, DataError, require
from fedpm.experiment.build import Experiment, build, start_engine
from fedpm.experiment.fitting import MisfitError
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.loop import train
from fedpm.experiment.observers import Callback
from fedpm.experiment.progress import shows
from fedpm.experiment.result import Result
from fedpm.experiment.settle import OWN
from fedpm.experiment.statistics import replaced, untrained
from fedpm.files import writing
from fedpm.model.kinds import Selectors, check_network
from fedpm.training.losses import Loss


def run(
    config: Base = "quickstart",
    *,
    net: nn.Module | None = None,
    weights: str | None = None,
    data: Dataset | Mapping[str, Any] | None = None,
    frozen: Selectors = (),
    trained: Selectors = (),
    masked: Selectors = (),
    loss: str | Loss | None = None,
    metrics: Any = None,
    remote: bool = False,
    out: Path | str | None = None,
    on_round: Callback = lambda round: None,
    progress: bool | None = None,
    start: Callable[[Experiment], Engine] = start_engine,
    **settings: Any,
) -> Result:
    """Train, and return the result; with ``out`` also leave a run folder that can be resumed.

    Args:
        config: settings to start from: a preset's name, a TOML file's path, a mapping (tables or dotted keys), or what
            ``fedpm.load_config`` gave.
        net: a network of your own, instead of ``model.name``.
        weights: ``"given"`` if the values of ``net`` are to be kept under the mask: it is pretrained; a short form of
            ``model.weights``.
        data: data of your own (``fedpm.dataset``, ``fedpm.federation``), instead of ``data.name``; or settings of the
            table ``data``.
        frozen: parameters of ``net`` that keep their value: names, patterns such as ``encoder.*``, classes of modules.
        trained: those that are trained as floats, which travel, instead of masked.
        masked: those that are masked; of layers that a mask suits nothing need be said (docs/networks.md).
        loss: what training lowers: a function of output and target, or a name (docs/tasks.md); instead of
            ``task.loss``.
        metrics: by what networks are judged, one or several: functions of output and target, torchmetrics objects,
            names, what ``fedpm.metric`` gives; the first decides which network and which round are best.
        remote: clients hold data of their own, and ``data`` is what the server chooses and tests on.
        out: the run folder; it must be new or empty.
        on_round: called with each round as it ends (``fedpm.Round``): its record, its model, and how to stop.
        progress: whether to show progress; unless said, on a terminal and in a notebook.
        start: starts another engine than ``config.engine`` names.
        **settings: further settings, tables as mappings: ``rounds=5, local={"epochs": 2}``.
    """
    stop_import()
    _check_kinds(net, on_round)
    dataset = _dataset(data, settings)
    _check_named(net, dataset, settings)
    settings |= {} if weights is None else {"model.weights": weights}
    given: dict[str, Any] = {"net": net, "data": dataset, "frozen": frozen, "trained": trained, "masked": masked}
    given |= {"loss": loss, "metrics": _several(metrics), "remote": remote}
    experiment = _built(load(config, settings), **given)
    _check_total(experiment, settings)
    check_used(flattened(settings), tomllib.loads(experiment.config_toml))
    if net is not None and dataset is None and config == "quickstart" and "data.name" not in flattened(settings):
        sentence = "your network is trained on digits, as the preset quickstart says; give data=…, or data.name"
        warnings.warn(sentence, UserWarning, stacklevel=2)
    if net is not None and weights is None and not shows(progress):
        _warn(experiment, net)
    if out is None:
        return train(experiment, None, on_round=on_round, progress=progress, start=start)
    with writing(Path(out)):
        begun = RunFolder.create(Path(out), experiment.config_toml)
    with begun as folder:
        try:
            return train(experiment, folder, on_round=on_round, progress=progress, start=start)
        except KeyboardInterrupt as stopped:
            stopped.add_note(f"continue with fedpm.resume({str(out)!r}), and the net=, data=, … that were given")
            raise


def resume(
    folder: Path | str,
    *,
    net: nn.Module | None = None,
    data: Dataset | Mapping[str, Any] | None = None,
    frozen: Selectors = (),
    trained: Selectors = (),
    masked: Selectors = (),
    loss: str | Loss | None = None,
    metrics: Any = None,
    remote: bool = False,
    on_round: Callback = lambda round: None,
    progress: bool | None = None,
    start: Callable[[Experiment], Engine] = start_engine,
    **settings: Any,
) -> Result:
    """Continue the run of a folder; it ends in the same model as an undisturbed run, unless clients draw in secret.

    Of the settings, ``rounds`` and ``stop`` may be others than before, and those that change no result, such as
    ``workers``.
    """
    stop_import()
    _check_kinds(net, on_round)
    dataset = _dataset(data, settings)
    given: dict[str, Any] = {"net": net, "data": dataset, "frozen": frozen, "trained": trained, "masked": masked}
    given |= {"loss": loss, "metrics": _several(metrics), "remote": remote}
    with RunFolder.open(Path(folder)) as opened:
        config = continued(load(opened.config_file), settings)
        check_resumable(config)
        try:
            experiment = _built(config, **given)
        except MisfitError as error:  # those that it began with did fit
            raise ArtifactError(
                f"{folder}: this run was started with another network or other data; give those ({error})"
            ) from None
        return train(experiment, opened, on_round=on_round, progress=progress, start=start)


def _dataset(data: Dataset | Mapping[str, Any] | None, settings: dict[str, Any]) -> Dataset | None:
    """Return the caller's own data; what are settings of the table ``data`` go to the others."""
    if isinstance(data, Mapping):
        if not all(value is None or isinstance(value, str | int | float | Path) for value in data.values()):
            raise DataError("data: a mapping holds settings of the table data; give data as fedpm.federation({…})")
        settings["data"] = data
        return None
    if isinstance(data, str | Path):
        raise DataError(
            f"data: {str(data)!r} is a path; read it first: data=fedpm.federation({str(data)!r}) if it says whose each "
            f"example is, else data=fedpm.load_dataset({str(data)!r})"
        )
    if data is not None and not isinstance(data, Dataset):
        raise DataError(
            f"data: a {type(data).__name__} is no data set; give fedpm.dataset(train=…, test=…), or each client's own "
            "by name: fedpm.federation({…})"
        )
    return data


def _check_named(net: nn.Module | None, data: Dataset | None, settings: Mapping[str, Any]) -> None:
    """Refuse the name of a network or of data beside those that are given."""
    for key, word, given in (("model.name", "net", net), ("data.name", "data", data)):
        name = flattened(settings).get(key, OWN)
        if given is not None and name != OWN:
            raise ConfigError(f"{key} = {name!r}: {word}=… is given too, and one of both is used; leave out the other")


def _check_total(experiment: Experiment, settings: Mapping[str, Any]) -> None:
    """Refuse another number of clients than the data name; one of a preset gives way to them."""
    total, named = flattened(settings).get("clients.total"), experiment.participation.clients
    if total not in (None, named):
        raise ConfigError(
            f"clients.total = {total}: there are {named} clients in {experiment.dataset.called}, who all belong to the "
            "run; leave it out, and say with clients.sampled how many take part in a round"
        )


def _warn(experiment: Experiment, net: nn.Module) -> None:
    """Warn the caller of ``run``, who sees no table of kinds, that what its network has learned is not used."""
    method = experiment.method
    if untrained(net):
        return
    if lost := replaced(method.network, "weights" if method.modes == ("weights",) else "masked"):
        warnings.warn(lost, UserWarning, stacklevel=3)


def _check_kinds(net: Any, on_round: Any) -> None:
    """Refuse what cannot be a network or a callback."""
    check_network(net)
    if not callable(on_round):
        raise ConfigError(f"on_round = {on_round!r}: should be a function of a round")


def _several(metrics: Any) -> list[Any] | None:
    """Return metrics as a list, None for none."""
    if metrics is None:
        return None
    return list(metrics) if isinstance(metrics, list | tuple) else [metrics]


def _built(config: Config, **given: Any) -> Experiment:
    """Return the experiment, or name the extra that a logger of it needs: before there is a folder."""
    experiment = build(config, **given)
    for name in experiment.loggers:
        require(name, f"{name} = true", name)
    return experiment


def continued(before: Config, settings: Mapping[str, Any]) -> Config:
    """Return the settings with which a run goes on, or refuse those that would make another run of it."""
    config = load(before, settings)
    old, new = flattened(before.model_dump()), flattened(config.model_dump())
    fixed = [key for key in new if new[key] != old.get(key) and changes_results(key) and key not in LENGTH]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: a run goes on with the settings it began with; only {' and '.join(sorted(LENGTH))} "
            "may change, and what changes no result, such as workers; start a new run for others"
        )
    return config


def check_resumable(config: Config) -> None:
    """Refuse to go on where a round that was cut short would be released a second time."""
    if config.privacy.unit != "none" and config.privacy.secret is True:
        raise ConfigError(
            "privacy.secret = true: a round that was cut short would be repeated with fresh noise, and so be released "
            "twice and counted once; start a new run, and add up what both cost"
        )
