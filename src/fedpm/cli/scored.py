"""The data that ``fedpm model eval`` scores a model on, and whether they fit."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpm.config import Config
from fedpm.config import load as load_config
from fedpm.data.datasets import DATASETS, Dataset, load_dataset
from fedpm.data.paths import countable, whole
from fedpm.errors import ConfigError
from fedpm.experiment.division import load
from fedpm.model.file import Model
from fedpm.model.weights import Weights, named_of
from fedpm.training.task import OWN


def scored_on(
    file: Path, model: Model | Weights, data: str | None, data_dir: Path | None, columns: dict[str, str | None]
) -> tuple[Dataset, str]:
    """Return the data whose test part is scored, and what to call that part; ``columns`` are names that were said."""
    name = data or _trained_on(model.header.provenance)
    if name is None:
        raise ConfigError(f"{file}: does not tell on which data it was trained; choose some with --data NAME")
    beside, classes = _beside(file), tuple(model.header.classes)
    settings = beside.data if beside else None
    known = {key: column or getattr(settings, key, None) for key, column in columns.items()}
    known |= {key: column for key, column in named_of(model).items() if known[key] is None}
    if data is None and name in ("folder", "own"):
        if settings is None or settings.path is None:
            raise ConfigError(f"{file}: was trained on data of your own; say where they are with --data PATH")
        if settings.test and (alone := countable(Path(settings.test))):  # what it was trained on may be gone
            return whole(alone, classes, **known), f"all of {Path(settings.test).stem}"
        said = {key: column for key, column in columns.items() if column is not None}
        own = load(settings.model_copy(update=said))
        return own, f"the test part of {own.name}"
    if name not in DATASETS and (path := countable(Path(name))):  # a tenth would be the share that a run holds out
        return whole(path, classes, **known), f"all of {Path(name).stem}"
    chosen = load_dataset(name, data_dir, **columns)
    return chosen, f"the test part of {chosen.name}"


def check_fit(model: Model | Weights, dataset: Dataset) -> None:
    """Refuse data that the network cannot take, or of which it has no scores."""
    shape, classes = model.header.input_shape, model.header.classes
    if dataset.input_shape != shape:
        raise ConfigError(
            f"{dataset.name} has inputs of shape {dataset.input_shape}; the model takes {shape}: choose data that fit"
        )
    if dataset.labelled:
        _check_classes(classes, dataset)
    if len(dataset.classes) > len(classes):
        raise ConfigError(
            f"{dataset.name} has {len(dataset.classes)} classes; the model has {len(classes)}: choose data that fit"
        )


def _check_classes(known: Sequence[str], dataset: Dataset) -> None:
    """Refuse data whose classes are others than the model's, or numbered otherwise: the score would say nothing."""
    found, numbers = dataset.classes, tuple(map(str, range(len(known))))
    if found == tuple(known[: len(found)]) or (tuple(known) == numbers and len(found) == len(known)):
        return
    if found == numbers[: len(found)]:
        order = ", ".join(f"{number} {name}" for number, name in zip(found[:12], known, strict=False))
        warnings.warn(f"labels of {dataset.name} are numbers, and count as {order}", UserWarning, stacklevel=2)
        return
    strange = [name for name in found if name not in known]
    why = f"{strange[0]!r} is none of them" if strange else "the order differs"
    raise ConfigError(
        f"the classes of {dataset.name} are {', '.join(found[:12])}, and those of the model {', '.join(known[:12])}: "
        f"{why}; give data with the model's classes, in that order"
    )


def _trained_on(provenance: dict[str, Any]) -> str | None:
    """Return the name of a model's data set, if its provenance tells one: anything may stand there."""
    found: Any = provenance
    for key in ("config", "data", "name"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def judged_by(file: Path, model: Model | Weights, *, labelled: bool) -> tuple[str, list[str]]:
    """Return the names of loss and metrics of a model's run.

    Functions of the user's own are taken from the settings beside the file alone: a model file may come from anybody,
    and does not say what is run here.
    """
    beside = _beside(file)
    task: Any = model.header.provenance.get("config") if beside is None else {"task": beside.task.model_dump()}
    task = task.get("task") if isinstance(task, dict) else None
    said: dict[str, Any] = task if isinstance(task, dict) else {}
    loss, metrics = str(said.get("loss", "auto")), [str(one) for one in said.get("metrics", [])]
    own = [name for name in (loss, *metrics) if name.startswith(OWN) or (":" in name and beside is None)]
    if not own:
        return loss, metrics
    why = f"was trained with {own[0]}, a function of somebody's own, which a model file does not bring along"
    if not labelled:
        raise ConfigError(f"{file}: {why}; score it in Python")
    warnings.warn(f"{file.name} {why}: it is scored by cross-entropy and accuracy", UserWarning, stacklevel=2)
    return "auto", []


def _beside(file: Path) -> Config | None:
    """Return the settings of a model's run, None if they are not beside it."""
    settings = (file if file.is_dir() else file.parent) / "config.toml"
    return load_config(settings) if settings.is_file() else None
