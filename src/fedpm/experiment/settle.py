"""Settings that depend on machine and caller, settled, so that the written configuration is complete."""

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from fedpm.config import Config, resolved
from fedpm.config.sections import DataConfig
from fedpm.data.datasets import Dataset
from fedpm.data.federation import Federation
from fedpm.data.ondemand import OnDemand
from fedpm.data.participation import Participation
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.warned import CALLER
from fedpm.privacy.budget import Guarantee
from fedpm.training.device import choose_device, choose_precision

OWN = "own"
"""The name of a network or of data that come through the Python API."""


def check_given(config: Config, net: nn.Module | None, data: Dataset | None) -> None:
    """Refuse a run of a network or data of one's own without them."""
    missing = [
        f"{section}.name = 'own': comes from Python only; give it there: fedpm.run({word}=…) for a new run, "
        f"fedpm.resume(folder, {word}=…) to go on"
        for section, word, given in (("data", "data", data), ("model", "net", net))
        if given is None and getattr(config, section).name == OWN
    ]
    if missing:
        raise ConfigError("\n".join(missing))


def peopled(config: Config, data: Dataset, *, own: bool, remote: bool = False) -> Config:
    """Return the configuration with the clients that the data name, if these are the clients.

    Args:
        config: what is asked for.
        data: the data set that is learned.
        own: whether it came through the Python API, where a federation says by itself how it is divided.
        remote: whether it is only what one place holds.
    """
    if remote:
        if isinstance(data, Federation | OnDemand):
            raise DataError(
                f"there are {len(data.clients)} clients in {data.called}, and one place of a fleet should have its own "
                "data alone; give federation.at(client), for the server federation.at(None)"
            )
        return config
    if not isinstance(data, Federation | OnDemand):
        if config.data.split == "given":
            raise DataError(
                f"data.split = 'given': nothing in {data.called} says which client has which example; give client "
                "folders, a column or an array client (docs/data.md), in Python fedpm.federation({…}), or use "
                "another data.split"
            )
        return config
    if not own and config.data.split != "given":
        several = f"{len(data.clients)} client{'s' * (len(data.clients) != 1)}"
        warnings.warn(
            f"{data.called} says which of {several} has which example, and data.split = "
            f"{config.data.split!r} deals them anew: set data.split=given to leave each client its own",
            UserWarning,
            stacklevel=CALLER,
        )
        return config
    total, sampled = len(data.clients), config.clients.sampled
    if sampled is not None and sampled > total:
        raise ConfigError(
            f"clients.sampled = {sampled}: there are {total} clients in {data.called}; sample at most as many"
        )
    division = {"split": "given", "classes_per_client": None, "alpha": None}
    clients = config.clients.model_copy(update={"total": total})
    return config.model_copy(update={"data": config.data.model_copy(update=division), "clients": clients})


def settle(
    config: Config,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    task: tuple[str, list[str]] = ("cross-entropy", ["accuracy"]),
) -> Config:
    """Replace every ``auto`` by what it comes to here, so that the written configuration is complete.

    ``task`` are the names of loss and metrics.
    """
    device = choose_device(config.device)
    wanted = config.precision if config.privacy.unit == "none" else "float32"
    precision = str(choose_precision(wanted, device)).removeprefix("torch.")
    update: dict[str, Any] = {"device": str(device), "precision": precision}
    update["data"] = _placed(config.data) if data is None else config.data.model_copy(update={"name": OWN})
    update["task"] = config.task.model_copy(update={"loss": task[0], "metrics": task[1]})
    if net is not None:
        update["model"] = config.model.model_copy(update={"name": OWN})
    # a fleet has replaced auto by true before
    update["privacy"] = config.privacy.model_copy(update={"secret": config.privacy.secret is True})
    return _settle_privacy(resolved(config.model_copy(update=update)))


def guarantee_of(config: Config) -> Guarantee | None:
    """Return what a configuration promises, None if nothing."""
    privacy = config.privacy
    if privacy.unit == "none" or privacy.epsilon is None:
        return None
    participation = Participation(config.seed, config.clients.total, config.clients.per_round)
    return Guarantee.settle(
        unit=privacy.unit,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=None if privacy.clip == "auto" else privacy.clip,
        noise=None if privacy.noise == "auto" else privacy.noise,
        sampling_rate=privacy.sampling_rate,
        epochs=config.local.epochs,
        most_rounds=participation.most(config.rounds),
        secret=privacy.secret is True,
    )


def _settle_privacy(config: Config) -> Config:
    guarantee = guarantee_of(config)
    if guarantee is None:
        return config
    noise = {} if guarantee.unit == "client" else {"noise": guarantee.noise}  # there is none with unit client
    privacy = config.privacy.model_copy(update={"clip": guarantee.clip, **noise})
    return config.model_copy(update={"privacy": privacy})


def _placed(data: DataConfig) -> DataConfig:
    """Make paths absolute, so that a run can be resumed from anywhere."""
    places = {key: getattr(data, key) for key in ("dir", "path", "test")}
    return data.model_copy(
        update={key: str(Path(place).expanduser().resolve()) for key, place in places.items() if place}
    )
