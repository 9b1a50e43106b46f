"""Settings that depend on machine and caller, settled, so that the written configuration is complete."""

from pathlib import Path
from typing import Any

from torch import nn

from fedpm.config import Config, resolved
from fedpm.config.sections import DataConfig
from fedpm.data.datasets import Dataset
from fedpm.data.participation import Participation
from fedpm.errors import ConfigError
from fedpm.privacy.budget import Guarantee
from fedpm.training.device import choose_device, choose_precision

OWN = "own"
"""The name of a network or of data that come through the Python API."""


def settle(config: Config, net: nn.Module | None = None, data: Dataset | None = None) -> Config:
    """Replace every ``auto`` by what it comes to here, so that the written configuration is complete."""
    missing = [
        f"{section}.name = 'own': comes through the Python API only; see fedpm.run and fedpm.resume"
        for section, given in (("data", data), ("model", net))
        if given is None and getattr(config, section).name == OWN
    ]
    if missing:
        raise ConfigError("\n".join(missing))
    device = choose_device(config.device)
    wanted = config.precision if config.privacy.unit == "none" else "float32"
    precision = str(choose_precision(wanted, device)).removeprefix("torch.")
    update: dict[str, Any] = {"device": str(device), "precision": precision}
    update["data"] = _placed(config.data) if data is None else config.data.model_copy(update={"name": OWN})
    if net is not None:
        update["model"] = config.model.model_copy(update={"name": OWN})
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
        secret=privacy.secret,
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
    places = {key: getattr(data, key) for key in ("dir", "path")}
    return data.model_copy(
        update={key: str(Path(place).expanduser().resolve()) for key, place in places.items() if place}
    )
