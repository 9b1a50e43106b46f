"""Metrics: how good outputs are, in a number of which more, or less, is better."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fedpm.errors import ConfigError
from fedpm.training.losses import aligned


@dataclass(frozen=True)
class Metric:
    """A figure by which outputs are judged.

    Args:
        name: under which it is written down.
        function: of all outputs and targets together; or an object with ``update``, ``compute`` and ``reset``, as
            torchmetrics has them. None for the mean loss.
        lower: whether less is better.
        sums: whether the function gives a sum and a count, of which the figure is the quotient over all batches: then
            no output need be kept.
    """

    name: str
    function: Any
    lower: bool = False
    sums: bool = False

    def rank(self, value: float) -> float:
        """Return a number that is higher where the figure is better; NaN is worst."""
        return -math.inf if math.isnan(value) else -value if self.lower else value


class Gathered:
    """The figure of a metric, batch by batch."""

    def __init__(self, metric: Metric) -> None:
        self._metric, self._sum, self._count = metric, 0.0, 0.0
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._streams = hasattr(metric.function, "compute")
        if self._streams:
            metric.function.reset()

    def add(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Take in a batch."""
        if self._metric.sums:
            part, count = map(float, self._metric.function(output, target))
            self._sum, self._count = self._sum + part, self._count + count
        elif self._streams:
            self._metric.function.update(output.cpu(), target.cpu())
        else:
            self._kept.append((output.cpu(), target.cpu()))

    def value(self) -> float:
        """Return the figure of all batches."""
        if self._metric.sums:
            return self._sum / max(1.0, self._count)
        function = self._metric.function
        value = function.compute() if self._streams else function(*map(torch.cat, zip(*self._kept, strict=True)))
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            kind = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
            raise ConfigError(f"metric {self._metric.name!r} gave {kind}; it should give one number") from None


def metric(function: Callable[..., Any], *, name: str | None = None, lower: bool | None = None) -> Metric:
    """Make a metric of a function of output and target, or of a torchmetrics object.

    Args:
        function: takes all outputs and targets, and gives one number.
        name: under which it is written down; unless given, the function's.
        lower: whether less is better; unless given, what an attribute ``higher_is_better`` says, else more is.
    """
    if isinstance(function, Metric):
        return function
    if not callable(function):
        raise ConfigError(f"metrics: {function!r} is neither a function of output and target nor a metric's name")
    higher = getattr(function, "higher_is_better", True)
    if lower is None and higher is None:
        raise ConfigError(
            f"metrics: {type(function).__name__} does not say whether more is better; give "
            "fedpm.metric(…, lower=True) or lower=False"
        )
    called = name or str(getattr(function, "__name__", type(function).__name__))
    return Metric(called, function, lower=not higher if lower is None else lower)


def decided(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return what outputs say: the class of the highest of several, or whether a single one is positive."""
    if output.ndim == target.ndim + 1 and output.shape[1] > 1:
        return output.argmax(1)
    return aligned(output, target) > 0


def accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many targets are met, of how many; those below 0 are of no class and do not count."""
    known, said = target >= 0, decided(output, target)
    true = target > 0.5 if said.dtype == torch.bool else target  # a truth value may be a probability
    return ((said == true) & known).sum(), known.sum()


def mse(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the sum of squared errors, and of how many."""
    return (aligned(output, target) - target).square().sum(), target.numel()


def mae(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the sum of absolute errors, and of how many."""
    return (aligned(output, target) - target).abs().sum(), target.numel()


def f1(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the F1 score: of positives, or the mean over labels or classes that occur."""
    found, true = decided(output, target), target
    scores = []
    for here, there in _positives(found, true):
        both = (here & there).sum()
        if here.any() or there.any():
            scores.append(2 * both / (here.sum() + there.sum()))
    return torch.stack(scores).mean() if scores else torch.ones(())


def _positives(found: torch.Tensor, true: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield, for each class or label, where it is found and where it is true."""
    if found.dtype != torch.bool:
        for number in torch.unique(true[true >= 0]):
            yield found == number, true == number
    elif true.ndim == 2:
        yield from zip(found.T, true.T > 0.5, strict=True)
    else:
        yield found, true > 0.5


def r2(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of the targets' variance that outputs explain."""
    off = (aligned(output, target) - target).square().sum()
    return 1 - off / (target.float() - target.float().mean(0)).square().sum()


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", accuracy, sums=True),
    "f1": Metric("f1", f1),
    "mse": Metric("mse", mse, lower=True, sums=True),
    "mae": Metric("mae", mae, lower=True, sums=True),
    "r2": Metric("r2", r2),
    "loss": Metric("loss", None, lower=True),
}
"""What ``task.metrics`` may name."""
