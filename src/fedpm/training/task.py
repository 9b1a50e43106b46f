"""A task: what training lowers, and by which figures a network is judged."""

import importlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import ConfigError, choices
from fedpm.training.losses import LOSSES, Loss, binary, cross_entropy
from fedpm.training.metrics import METRICS, Metric, metric

OWN = "own:"
"""Begins the name of a loss or a metric that came as a function, by which the settings know it."""


@dataclass(frozen=True)
class Task:
    """What is learned; the first metric decides which network is best."""

    loss: Loss = cross_entropy
    metrics: tuple[Metric, ...] = (METRICS["accuracy"],)

    @property
    def first(self) -> Metric:
        """The metric that decides."""
        return self.metrics[0]


def task_of(
    loss: str | Loss, metrics: Sequence[Any], *, labelled: bool, labels: npt.NDArray[Any] | None = None
) -> tuple[Task, str, list[str]]:
    """Return a task, and the names of its loss and metrics for the settings.

    Args:
        loss: a function, or a name: of one that is built in, or ``module:function``; ``auto`` is cross-entropy.
        metrics: functions, torchmetrics objects and names likewise; none for accuracy, or where that says nothing, the
            loss.
        labelled: whether each example is of one class.
        labels: what they are, for the sentence of an error.
    """
    if loss == "auto":
        if not labelled:
            raise ConfigError(
                f"task.loss = 'auto': labels are not one class an example{meant(labels)}, so say what to lower: "
                "task.loss = 'binary' (truth values), 'mse' (numbers), 'cross-entropy' (a class a pixel), or loss=… in "
                "Python"
            )
        loss = "cross-entropy"
    function = named_loss(loss) if isinstance(loss, str) else loss
    if not callable(function):
        raise ConfigError(f"loss = {loss!r}: should be a function of output and target, or a name: {', '.join(LOSSES)}")
    own = not any(function is known for known in LOSSES.values())
    judged = "accuracy" if function is cross_entropy or function is binary or (own and labelled) else "loss"
    made = [named_metric(one) if isinstance(one, str) else metric(one) for one in metrics or [judged]]
    if len({one.name for one in made}) < len(made):
        raise ConfigError(
            f"metrics {', '.join(one.name for one in made)}: two have one name; give fedpm.metric(…, name=…)"
        )
    said = [one if isinstance(one, str) else OWN + metric(one).name for one in metrics or [judged]]
    called = loss if isinstance(loss, str) else OWN + getattr(loss, "__name__", type(loss).__name__)
    return Task(function, tuple(made)), called, said


def meant(labels: npt.NDArray[Any] | None) -> str:
    """Return, of labels that look like classes in another form, the first, what it is, and how to make it a class."""
    if labels is None or not len(labels):
        return ""
    if labels.ndim == 2 and labels.shape[1] == 1:
        whole = ".astype(int)" if labels.dtype.kind == "f" else ""
        return f" (they have the shape {labels.shape}: if that is one class each, give y.ravel(){whole})"
    if labels.ndim == 2 and np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all():
        first = f"[{', '.join(f'{one:g}' for one in labels[0, :8])}{', …' if labels.shape[1] > 8 else ''}]"
        return f" (the first is {first}, {labels.dtype}: if that is one-hot, give y.argmax(1))"
    if labels.ndim == 1 and labels.dtype.kind == "f" and (labels >= 0).all() and (labels == np.rint(labels)).all():
        whole = f"if that is a class, give y.astype(int), in a table {labels[0]:.0f}"
        return f" (the first is {labels[0]}, {labels.dtype}: {whole})"
    return f" (the first is {labels[0]}, {labels.dtype})" if labels.ndim == 1 else ""


def named_loss(name: str) -> Loss:
    """Return a loss by its name, ``module:function`` for one of your own."""
    loss: Loss = LOSSES[name] if name in LOSSES else imported("task.loss", name, tuple(LOSSES))
    return loss


def named_metric(name: str) -> Metric:
    """Return a metric by its name, ``module:function`` for one of your own."""
    return METRICS[name] if name in METRICS else metric(imported("task.metrics", name, tuple(METRICS)))


def imported(key: str, name: str, known: tuple[str, ...] = ()) -> Any:
    """Return what a name ``module:function`` stands for."""
    if name.startswith(OWN):
        raise ConfigError(f"{key} = {name!r}: came through the Python API, and must be given again there")
    module, colon, attribute = name.partition(":")
    if not colon:
        among = (
            f"{choices(name, known)}, or MODULE:FUNCTION" if known else "should be MODULE:FUNCTION, such as net:make"
        )
        raise ConfigError(f"{key} = {name!r}: {among}")
    module = module.removesuffix(".py")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"{key} = {name!r}: {module} is a path, and should be a name that Python imports, such as net:make; go to "
            "the folder of the file first"
        )
    try:
        found = importlib.import_module(module)
    except Exception as error:  # of the user's own, while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            there = f"there is no module {error.name} here, nor is one installed; go to the folder of {error.name}.py"
            raise ConfigError(f"{key} = {name!r}: {there}") from None
        raise ConfigError(f"{key} = {name!r}: {module} fails while it is imported ({_told(error)}); mend it") from None
    if not hasattr(found, attribute):
        own = [one for one in vars(found) if not one.startswith("_")]
        raise ConfigError(f"{key} = {name!r}: {module} has no {attribute!r}; {choices(attribute, own)}")
    return getattr(found, attribute)


def _told(error: Exception) -> str:
    """Return what fails in a user's module, and where in their own files, if that can be told."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError({error.msg!r}), {Path(error.filename or '').name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "site-packages" not in one.filename and not one.filename.startswith("<")]
    return repr(error) + (f", {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else "")
