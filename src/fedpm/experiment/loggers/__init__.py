"""Programs that collect the figures of runs: each is a setting, an extra, and a file here."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedpm.experiment.observers import Observer
from fedpm.experiment.record import RoundRecord

LOGGERS = ("tensorboard", "mlflow", "wandb")
"""The name of a setting, of an extra, of the package that it brings, and of a module here."""
_SCALARS = ("accuracy", "loss", "train_loss", "uplink_bpp", "downlink_bpp", "uplink_bytes", "downlink_bytes", "seconds")


@dataclass(frozen=True)
class About:
    """What a logger is told of a run: its folder, the rounds that are done, names of layers, and settings by key."""

    folder: Path
    done: int
    layers: Sequence[str]
    settings: Mapping[str, Any]


def open_logger(name: str, about: About) -> AbstractContextManager[Observer]:
    """Return a logger, ready to be entered."""
    logger: AbstractContextManager[Observer] = import_module(f"fedpm.experiment.loggers.{name}").log(about)
    return logger


def scalars(record: RoundRecord, layers: Sequence[str]) -> dict[str, float]:
    """Return the figures of a round that are single numbers, by the names under which loggers show them."""
    figures = {name: value for name in (*_SCALARS, "epsilon") if (value := record.get(name)) is not None}
    modes = {f"validation_accuracy/{mode}": value for mode, value in record.get("validation_accuracy", {}).items()}
    others = [("metrics", record.get("metrics", {}))]
    others += [(f"validation_{mode}", values) for mode, values in record.get("validation_metrics", {}).items()]
    for where, values in others:
        modes |= {f"{where}/{name}": value for name, value in values.items() if value is not None}
    theta = zip(layers, record.get("theta_layers", []), strict=False)  # dense methods have none
    return {**figures, **modes, **{f"theta/{layer}": mean for layer, mean in theta}}  # type: ignore[dict-item]
