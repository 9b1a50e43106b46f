"""Whether network, task and data fit each other: asked before any work is done, and answered in one sentence."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpm.data.datasets import OWN, Dataset, Shard, to_input, to_target
from fedpm.data.lazy import Lazy
from fedpm.data.ondemand import OnDemand
from fedpm.data.partition import Indices
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.division import Division
from fedpm.model.masking import MaskedNetwork
from fedpm.model.outputs import logits_of
from fedpm.model.tokens import tables_of, unknown_token
from fedpm.training.evaluation import evaluate
from fedpm.training.losses import LOSSES, binary, cross_entropy
from fedpm.training.metrics import METRICS
from fedpm.training.private import check_alone
from fedpm.training.task import Task, meant

CPU = torch.device("cpu")
_TRIED = 2000  # examples on which a metric of the caller's own is tried, at most


class MisfitError(ConfigError):
    """Network and data do not fit each other."""


def check_fit(network: MaskedNetwork, task: Task, called: str, dataset: Dataset) -> None:
    """Refuse a network that cannot take the inputs, or outputs and targets that the loss cannot compare."""
    module = network.module(network.weights(0), network.initial_stats())
    try:
        with torch.inference_mode():
            output = logits_of(module(to_input(dataset.test.x[:1], CPU)))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        told = unknown_token(network.net, dataset.test.x[:1]) or f"{reason}; {_remedy(network.net, dataset, reason)}"
        raise MisfitError(
            f"the network cannot take an input of {_of(dataset)}, of shape {dataset.input_shape}: {told}"
        ) from None
    shape = tuple(output.shape)
    if wanted := _wanted(task, called, dataset, shape):
        raise MisfitError(f"the network gives an output of shape {shape} for one input; it should be {wanted}")
    target = to_target(dataset.test.y[:1], CPU)
    about = f"an output of shape {shape} and a target ({target.dtype}) of shape {tuple(target.shape)}"
    value = _tried(f"task.loss = {called!r}", about, lambda: task.loss(output.clone().requires_grad_(), target))
    if not isinstance(value, torch.Tensor) or value.ndim:
        kind = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise ConfigError(f"task.loss = {called!r} gave {kind}; it should give one number, the mean over the batch")
    if not value.requires_grad:
        raise ConfigError(
            f"task.loss = {called!r} does not depend on the output; it should, by operations that have a gradient"
        )
    _check_metrics(module, task, dataset)


def _remedy(net: nn.Module, dataset: Dataset, reason: str) -> str:
    """Return how inputs are likely brought to fit a network: by another type, or another shape."""
    dtype, embedding = dataset.test.x.dtype, bool(tables_of(net))
    if embedding and "'indices'" in reason:  # torch's word for what an embedding looks up
        scaled = " and scaled to floats, as images are" if dtype == np.uint8 else ""
        another = "integers of another type" if dtype == np.uint8 else "integers"
        return f"they are {dtype}{scaled}: give {another}, such as int64, for tokens"
    others = {value.dtype for value in net.parameters() if value.is_floating_point()} - {torch.float32}
    if others and "type" in reason:
        return f"the network is {str(others.pop()).removeprefix('torch.')}, and inputs are float32: give net.float()"
    if dtype.kind in "iu" and dtype != np.uint8 and not embedding:
        return f"they are {dtype}: give floats, unless the first layer is an embedding"
    return _reshaped(net, dataset.input_shape)


def check_tokens(network: MaskedNetwork, test: Shard, division: Division, names: Sequence[str]) -> None:
    """Refuse tokens that an embedding has no row for; the largest and the least of all that are here are tried."""
    if not tables_of(network.net):
        return
    module = network.module(network.weights(0), network.initial_stats())
    for whose, shard in (("", division.train), ("validation data", division.validation), ("test data", test)):
        if isinstance(shard.x, Lazy) or shard.x.dtype.kind not in "iu" or not shard.x.size:
            continue
        for place in {int(shard.x.argmax()), int(shard.x.argmin())}:
            row = place // (shard.x.size // len(shard))
            try:
                with torch.inference_mode():
                    module(to_input(shard.x[row : row + 1], CPU))
            except IndexError:
                told = unknown_token(network.net, shard.x[row : row + 1])
                if not told:
                    raise
                owner = next((client for client, part in enumerate(division.parts) if row in part), 0)
                client = names[owner] if names else owner
                raise MisfitError(f"{whose or f'client {client}'}: {told}") from None


def _reshaped(net: nn.Module, shape: tuple[int, ...]) -> str:
    """Return how inputs of a shape are likely brought to fit a network."""
    channels = (1, 3, 4)
    if len(shape) == 3 and shape[-1] in channels and shape[0] not in channels:
        return "images should have their channels first: x.transpose(0, 3, 1, 2)"
    if len(shape) == 2 and any(isinstance(module, nn.Conv2d) for module in net.modules()):
        return "images should have a channel, one if they are grey: x[:, None]"
    flat = ", or begin with nn.Flatten() if that is a row" if len(shape) > 1 else ""
    return f"fit the first layer to this shape{flat}"


def _of(dataset: Dataset) -> str:
    return dataset.called if dataset.name == OWN else f"{dataset.name} (data.name)"


def check_batches(
    network: MaskedNetwork, dataset: Dataset, parts: Sequence[Indices], batch_size: int, names: Sequence[str]
) -> None:
    """Refuse a client with a batch of one example if a norm layer cannot train on one."""
    alone = [client for client, part in enumerate(parts) if len(part) and len(part) // -(-len(part) // batch_size) == 1]
    if not alone or not any(isinstance(module, _BatchNorm) for module in network.net.modules()):
        return
    module = network.module(network.weights(0), network.initial_stats()).train()
    try:
        with torch.inference_mode():
            module(to_input(dataset.test.x[:1], CPU))
    except ValueError:
        raise DataError(
            f"client {(names or range(len(parts)))[alone[0]]}: trains on a batch of one example of "
            f"{len(parts[alone[0]])}, which batch norm cannot; give it more examples or leave it out, use a larger "
            "local.batch_size, or another norm layer"
        ) from None


def _wanted(task: Task, called: str, dataset: Dataset, shape: tuple[int, ...]) -> str | None:
    """Return what shape an output should have for a loss that has a name, None if it has it."""
    y = dataset.test.y
    if task.loss is cross_entropy:
        if y.dtype.kind == "f":
            raise ConfigError(
                f"task.loss = {called!r}: labels of {dataset.called} are {y.dtype} of shape {y.shape[1:]}"
                f"{meant(dataset.train.y)}; they should be whole numbers, the classes: use 'mse' or 'binary' for others"
            )
        classes = len(dataset.classes) if y.dtype.kind == "i" else 2
        if classes == 1 and shape[1:2] == (1,):  # whose softmax is 1 and loss 0, whatever the network says
            raise ConfigError(
                f"the only class of {dataset.called} is {dataset.classes[0]!r}: there is nothing to tell apart; give "
                "examples of two at least, or, if others will come, name them all: fedpm.dataset(…, classes=(…))"
            )
        fits = len(shape) == y.ndim + 1 and shape[1] >= classes and shape[2:] == y.shape[1:]
        if fits:
            return None
        gaps = len(np.union1d(y, dataset.train.y)) < classes
        remedy = f"; their labels go up to {classes - 1}, with gaps: number them 0, 1, …" if gaps else ""
        remedy += _tested_alone(dataset) if dataset.labelled else "" if gaps else meant(dataset.train.y)
        return f"{(1, classes, *y.shape[1:])}: a score for each of the {classes} classes of {_of(dataset)}{remedy}"
    if not any(task.loss is loss for loss in LOSSES.values()):
        return None
    if task.loss is binary and (y.min() < 0 or y.max() > 1):
        worst = y.max() if y.max() > 1 else y.min()
        raise ConfigError(
            f"task.loss = 'binary': a label of {dataset.called} is {worst}; it compares truth values, or numbers from "
            "0 to 1: use 'cross-entropy' for classes, 'mse' for numbers"
        )
    if math.prod(shape) == y[:1].size:
        return None
    remedy = "; for a score of each class use task.loss = 'cross-entropy'" if dataset.labelled else ""
    return f"{(1, *(y.shape[1:] or (1,)))}: one number for each that {called!r} compares it with{remedy}"


def _tested_alone(dataset: Dataset) -> str:
    """Return which classes the test data alone have; of clients that are loaded on demand nobody knows."""
    alone = np.setdiff1d(dataset.test.y, dataset.train.y)
    if not len(alone) or isinstance(dataset, OnDemand):
        return ""
    names = ", ".join(repr(dataset.classes[number]) for number in alone[:5]) + (" …" if len(alone) > 5 else "")
    return f"; {names} occur{'s' if len(alone) == 1 else ''} in the test data alone"


def _check_metrics(module: nn.Module, task: Task, dataset: Dataset) -> None:
    """Try metrics, so that a misfit is told before the first round."""
    y = dataset.test.y
    for metric in task.metrics:
        own = metric is not METRICS.get(metric.name)
        if not own and metric.name in ("accuracy", "f1") and task.loss is not binary and not _whole(y):
            raise ConfigError(
                f"metric {metric.name!r} counts classes or truth values, and labels of {dataset.called} are numbers; "
                "use 'mse', 'mae' or 'r2'"
            )
        few = dataset.test.take(np.arange(min(_TRIED if own else 2, len(y))))
        about, alone = f"outputs and targets of {len(few)} examples", Task(task.loss, (metric,))
        _tried(f"metric {metric.name!r}", about, partial(evaluate, module, few, CPU, alone))


def _whole(y: npt.NDArray[Any]) -> bool:
    """Return whether targets are classes or truth values, written as fractions perhaps."""
    return y.dtype.kind != "f" or bool(np.isin(y, (0, 1)).all())


def _tried(what: str, about: str, compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except ConfigError:
        raise
    except Exception as error:  # of a function of the caller's own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{what} cannot be computed from {about}: {reason}; use one that fits the labels") from None


def check_suits(task: Task, called: str, dataset: Dataset, *, logit_adjustment: float) -> None:
    """Refuse an adjustment of logits where there are no classes to adjust."""
    softmax = task.loss is cross_entropy or not any(task.loss is loss for loss in LOSSES.values())
    if logit_adjustment and not (dataset.labelled and softmax):
        raise ConfigError(
            f"local.logit_adjustment = {logit_adjustment}: weighs the classes of cross-entropy, and with task.loss = "
            f"{called!r} on {dataset.called} there are none; use 0"
        )


def check_private_loss(network: MaskedNetwork, task: Task, called: str, dataset: Dataset) -> None:
    """Refuse a loss of the caller's own whose gradient cannot be had for each example."""
    if not any(task.loss is loss for loss in LOSSES.values()):
        check_alone(network, dataset.train, task.loss, called)
