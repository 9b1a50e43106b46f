"""How good a network is on held-out examples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpm.data.datasets import Shard, to_input, to_target
from fedpm.model.outputs import logits_of
from fedpm.model.still import Tail
from fedpm.training.features import skipped
from fedpm.training.metrics import Gathered
from fedpm.training.task import Task

BATCH = 500
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """The figures of a task by name, the first of which decides, and the mean loss."""

    task: Task
    values: dict[str, float]
    loss: float
    count: int
    classes: tuple[tuple[int, int], ...] = ()
    """Of each class, where an example is of one: how many were met, of how many."""

    @property
    def accuracy(self) -> float:
        """The share of targets that are met, if that is measured."""
        return self.values["accuracy"]

    @property
    def rank(self) -> tuple[float, float]:
        """A key by which better scores sort higher: the first metric, then loss."""
        first = self.task.first
        return first.rank(self.values[first.name]), -self.loss


def evaluate(net: nn.Module, shard: Shard, device: torch.device, task: Task | None = None) -> Score:
    """Return the score of a network in eval mode, in float32, on all examples."""
    net = net.to(device).eval()
    if skip := skipped(shard):
        net = Tail(net, skip)
    return score(lambda x: logits_of(net(x)), shard, device, task or Task())


@torch.inference_mode()
def score(forward: Callable[[torch.Tensor], torch.Tensor], shard: Shard, device: torch.device, task: Task) -> Score:
    """Return the score of what gives an output for each input."""
    gathered = {metric.name: Gathered(metric) for metric in task.metrics if metric.function is not None}
    loss, tally = 0.0, np.zeros((2, 0), np.int64)
    for start in range(0, len(shard), BATCH):
        output = forward(to_input(shard.x[start : start + BATCH], device))
        target = to_target(shard.y[start : start + BATCH], device)
        loss += float(task.loss(output, target)) * len(target)
        for metric in gathered.values():
            metric.add(output, target)
        if _classed(output, target):
            tally = _tally(tally, output.argmax(1).cpu().numpy(), target.cpu().numpy(), output.shape[1])
    loss /= len(shard)
    found = {name: metric.value() for name, metric in gathered.items()}
    values = {metric.name: found.get(metric.name, loss) for metric in task.metrics}
    return Score(task, values, loss, len(shard), tuple((int(met), int(all_)) for met, all_ in tally.T))


def _classed(output: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether outputs are a score for each class, and each target is one."""
    several = output.ndim == 2 and output.shape[1] > 1 and target.ndim == 1
    return several and not target.is_floating_point() and int(target.max()) < output.shape[1]


def _tally(before: Counts, said: Counts, true: Counts, classes: int) -> Counts:
    """Add a batch to how many of each class were met, and how many there were."""
    each = np.stack([np.bincount(some, minlength=classes) for some in (true[said == true], true)])
    return each + before if before.size else each


def averaged(scores: Sequence[Score]) -> Score:
    """Return what scores come to together, each counting by its examples."""
    counts, first = [score.count for score in scores], scores[0]
    values = {name: _mean([score.values[name] for score in scores], counts) for name in first.values}
    loss = _mean([score.loss for score in scores], counts)
    tallies = zip(*(score.classes for score in scores if score.classes), strict=True)
    classes = tuple((sum(met for met, _ in each), sum(all_ for _, all_ in each)) for each in tallies)
    return Score(first.task, values, loss, sum(counts), classes)


def _mean(values: list[float], counts: list[int]) -> float:
    """Return the mean of what is finite, by examples: one client's word does not spoil the others'."""
    known = [(value, count) for value, count in zip(values, counts, strict=True) if math.isfinite(value)]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if known else math.nan
