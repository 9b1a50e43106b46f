"""What a run records about itself beside scores and traffic, for reports: θ, layers, and who holds which classes."""

import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedpm.data.partition import histogram
from fedpm.errors import ConfigError
from fedpm.experiment.build import Experiment
from fedpm.experiment.observers import TensorBoard
from fedpm.files import write_atomically
from fedpm.methods.base import Algorithm
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.wire.masks import Mask

LEVELS = 21
"""Bins of the histogram of θ, around 0, 0.05, …, 1: θ is a fraction of few masks, and 0 and 1 are where it gathers."""
_CLIENTS = 1000  # whose classes are written down, at most


def observed(
    on_round: Callable[[dict[str, Any]], None], experiment: Experiment, folder: Path | None, done: int
) -> Callable[[dict[str, Any]], None]:
    """Write what is known before the first round, and return what takes each record: the boards, then ``on_round``."""
    if folder is not None:
        _write_classes(folder, experiment)
    if not experiment.config.tensorboard:
        return on_round
    if folder is None:
        raise ConfigError("tensorboard = true writes into the run folder: give one, out=…")
    board = TensorBoard(folder, done)

    def both(record: dict[str, Any]) -> None:
        board(record)
        on_round(record)

    return both


def of_theta(algorithm: Algorithm[Any, Any], state: Any) -> dict[str, Any]:
    """Return the histogram of the global θ and its mean in each layer; nothing if weights are trained."""
    theta = algorithm.mask(state, "expected")
    if theta is None:
        return {}
    counts = np.bincount(np.rint(theta * (LEVELS - 1)).astype(np.int64), minlength=LEVELS)
    return {"theta_histogram": counts.tolist(), "theta_layers": _means(algorithm.masked, theta)}


def layers(masked: MaskedNetwork, mask: Mask | Vector | None) -> list[dict[str, Any]]:
    """Return each layer's name and size, and the share of its weights that the final mask keeps."""
    found: list[dict[str, Any]] = [{"name": part.name, "size": part.size} for part in masked.parts]
    if mask is None:
        return found
    return [{**layer, "kept": kept} for layer, kept in zip(found, _means(masked, mask), strict=True)]


def versions() -> dict[str, str]:
    """Return what made the result: versions, and the kind of machine."""
    found = {name: version(name) for name in ("fedpm", "torch", "numpy", "constriction")}
    return {**found, "python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def _write_classes(folder: Path, experiment: Experiment) -> None:
    """Write how many examples of each class each client holds, unless only the clients themselves know."""
    if sum(map(len, experiment.clients.parts)) > len(experiment.clients.train):
        return  # the data of one place, which stand for those of every client
    parts = list(experiment.clients.parts[:_CLIENTS])
    classes = experiment.dataset.classes
    counts = histogram(experiment.clients.train.y, parts, len(classes))
    content = {"classes": list(classes), "clients": len(experiment.clients.parts), "counts": counts.tolist()}
    write_atomically(folder / "clients.json", (json.dumps(content) + "\n").encode())


def _means(masked: MaskedNetwork, values: Mask | Vector) -> list[float]:
    bounds = np.cumsum([part.size for part in masked.parts])[:-1]
    return [round(float(layer.mean(dtype=np.float64)), 6) for layer in np.split(values, bounds)]
