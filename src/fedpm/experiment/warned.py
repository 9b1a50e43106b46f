"""What runs, but hardly as its user means it: a warning in one sentence each."""

import warnings

import numpy as np
import torch
from torch import nn

from fedpm.data.datasets import Dataset, Shard, to_input
from fedpm.data.lazy import Lazy
from fedpm.model.masking import MaskedNetwork
from fedpm.model.outputs import logits_of
from fedpm.training.losses import cross_entropy
from fedpm.training.task import Task

CALLER = 5
"""Of a warning: the level of who called ``fedpm.run``, which calls ``build`` by a function between."""
APART = 1000
"""How many times as large as another a column of a table may be."""


def warn(network: MaskedNetwork, task: Task, dataset: Dataset, train: Shard | None, net: nn.Module | None) -> None:
    """Warn of what would surprise a user; ``train`` are the clients' examples, if they are here."""
    found = [unlike_columns(dataset)]
    if net is not None and task.loss is cross_entropy and dataset.labelled:
        found += [spare_outputs(network, dataset), probabilities(network, dataset)]
    if train is not None:
        found.append(untaught(dataset, train))
    for sentence in filter(None, found):
        warnings.warn(sentence, UserWarning, stacklevel=CALLER)


def _outputs(network: MaskedNetwork, dataset: Dataset) -> torch.Tensor:
    """Return what a network gives for an example before any training."""
    module = network.module(network.weights(0), network.initial_stats())
    with torch.inference_mode():
        return logits_of(module(to_input(dataset.test.x[:1], torch.device("cpu"))))


def probabilities(network: MaskedNetwork, dataset: Dataset) -> str:
    """Return a sentence on a network that ends in a softmax, none if it does not: the loss has one already."""
    outputs = _outputs(network, dataset)
    if outputs.shape[1] < 2 or outputs.min() < 0 or not torch.allclose(outputs.sum(1), torch.ones(1)):
        return ""
    return (
        "the network gives probabilities, for its outputs are at least 0 and add up to 1, and cross-entropy takes "
        "logits, of which it makes probabilities itself: leave out the softmax at the end"
    )


def spare_outputs(network: MaskedNetwork, dataset: Dataset) -> str:
    """Return a sentence on outputs that stand for no class, none if there are none: they train, but say nothing."""
    classes, outputs = len(dataset.classes), _outputs(network, dataset).shape[1]
    if outputs == classes:
        return ""
    return (
        f"the network gives {outputs} scores, and {dataset.called} have {classes} classes: scores {classes} to "
        f"{outputs - 1} stand for none; let its last layer give {classes}, or, if data of the others will come, name "
        f"all {outputs}: fedpm.dataset(…, classes=(…))"
    )


def unlike_columns(dataset: Dataset) -> str:
    """Return a sentence on columns of a table of which one drowns another, none if there are none."""
    x = dataset.train.x
    if isinstance(x, Lazy) or x.ndim != 2 or x.dtype.kind != "f":
        return ""
    sizes = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
    there = np.flatnonzero(sizes)  # a column of zeros teaches nothing, and drowns nothing
    if not len(there) or sizes[there].max() <= APART * sizes[there].min():
        return ""
    large, small = (there[place(sizes[there])] for place in (np.argmax, np.argmin))
    return (
        f"input {large + 1} of {x.shape[1]} is about {sizes[large] / sizes[small]:,.0f} times as large as input "
        f"{small + 1}, and will drown it: standardise the columns (docs/howto/chance.md)"
    )


def untaught(dataset: Dataset, train: Shard) -> str:
    """Return a sentence on classes that are tested and not trained, none if there are none."""
    if not dataset.labelled:
        return ""
    numbers = sorted({*np.unique(dataset.test.y).tolist()} - {*np.unique(train.y).tolist()})
    missing = [dataset.classes[number] for number in numbers]
    if not missing:
        return ""
    several = f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}"
    return (
        f"no client trains on these classes of the test data: {several}; they will not be learned: give clients "
        "examples of them, or leave them out"
    )
