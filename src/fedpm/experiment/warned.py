"""What runs, but hardly as its user means it: a warning in one sentence each."""

import warnings
from difflib import get_close_matches

import numpy as np
import torch
from torch import nn

from fedpm.data.datasets import Dataset, Shard, to_input
from fedpm.data.lazy import Lazy
from fedpm.experiment.division import Division
from fedpm.model.masking import MaskedNetwork
from fedpm.model.outputs import logits_of
from fedpm.training.losses import LOSSES, NUMBERS, cross_entropy
from fedpm.training.task import Task

CALLER = 5
"""Of a warning: the level of who called ``fedpm.run``, which calls ``build`` by a function between."""
APART = 1000
"""How many times as large as another a column of a table may be."""
FAR = 10
"""How large inputs and numbers to learn may be, for a network begins at about 1; numbers also spread by 1 / FAR."""
FEW = 10
"""Examples of a class: with fewer, whole numbers may be quantities; with more, one that is missing is none."""
MANY = 20
"""How many classes may go by numbers alone, if few examples are of each."""
SLOW, FAST = 0.05, 10.0
"""How far scores should get in a round at least, and in a step at most: FedPM's go about 9 from dropped to kept."""
_SEEN = 1000  # inputs that tell how large all are


def warn(
    network: MaskedNetwork,
    task: Task,
    dataset: Dataset,
    division: Division,
    net: nn.Module | None,
    pace: tuple[float, int] | None,
) -> None:
    """Warn of what would surprise a user.

    Args:
        network: under its mask.
        task: what is learned.
        dataset: all data.
        division: who has which examples.
        net: the network, if it is the user's own.
        pace: the rate of scores that was set, and the steps of a client in a round.
    """
    found = [unlike_columns(dataset) or large_inputs(dataset), far_targets(task, dataset)]
    found += [far_rate(*pace)] if pace else []
    if net is not None and task.loss is cross_entropy and dataset.labelled:
        found += [spare_outputs(network, dataset), probabilities(network, dataset)]
    if division.load is None:
        train = division.train
        others = doubtful_classes(task, dataset, train) or untaught(dataset, train) or lone_classes(dataset)
        found.append(spaced_classes(dataset) or others or one_class_each(dataset, division))
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
    spare = f"scores {classes} to {outputs - 1} stand" if outputs > classes + 1 else f"score {classes} stands"
    return (
        f"the network gives {outputs} scores, and {dataset.called} have {classes} classes: {spare} for none; let its "
        f"last layer give {classes}, or, if data of the others will come, name all {outputs}: "
        "fedpm.dataset(…, classes=(…))"
    )


def far_rate(lr: float, steps: int) -> str:
    """Return a sentence on a rate at which scores cannot learn, none if they can."""
    if lr * steps >= SLOW and lr <= FAST:
        return ""
    far = f"{lr * steps:.2g} in the {steps} steps of a round, too little to drop or keep a weight"
    if lr > FAST:
        far = f"{lr:g} in a step, too far for the next ones to correct"
    return f"local.lr = {lr:g}: scores move by about {far}; leave it at auto (docs/start.md)"


def one_class_each(dataset: Dataset, division: Division) -> str:
    """Return a sentence on clients that have one class each, none if some have more."""
    held = [np.unique(division.train.y[part]) for part in division.parts if len(part)] if dataset.labelled else []
    if len(held) < 2 or any(len(classes) > 1 for classes in held) or len(np.unique(np.concatenate(held))) < 2:
        return ""
    return (
        f"each of {len(held)} clients has examples of one class alone, and unlearns the others: accuracy will jump; "
        "set aggregation.discount=0.5 and local.adam_epsilon=1 (docs/howto/chance.md)"
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
    names = [f"column {name!r}" for name in dataset.columns] or [f"input {place + 1}" for place in range(x.shape[1])]
    return (
        f"{names[large]} of {x.shape[1]} is about {sizes[large] / sizes[small]:,.0f} times as large as {names[small]}, "
        "and will drown it: standardise the columns (docs/howto/chance.md)"
    )


def large_inputs(dataset: Dataset) -> str:
    """Return a sentence on inputs that are far above 1, none if they are not, or read when they are asked for."""
    x = dataset.train.x
    if isinstance(x, Lazy) or x.dtype.kind != "f":
        return ""
    size = float(np.sqrt(np.mean(np.square(x[:_SEEN], dtype=np.float64))))
    if size <= FAR:
        return ""
    return (
        f"inputs of {dataset.called} are about {size:,.0f} in size, and a network is made for about 1: divide pixels "
        "by 255, or give them as uint8; standardise the columns of a table (docs/howto/chance.md)"
    )


def far_targets(task: Task, dataset: Dataset) -> str:
    """Return a sentence on numbers to learn that are far from 0 ± 1, none if they are not."""
    y = dataset.train.y
    if y.dtype.kind != "f" or not any(task.loss is LOSSES[name] for name in NUMBERS):
        return ""
    mean, spread = float(y.mean(dtype=np.float64)), float(y.std(dtype=np.float64))
    if max(abs(mean), spread) <= FAR and spread >= 1 / FAR:
        return ""
    return (
        f"labels of {dataset.called} are {mean:.3g} on average and spread by {spread:.3g}, and a network begins at "
        "about 0 ± 1: standardise them, (y - mean) / spread (docs/tasks.md)"
    )


def doubtful_classes(task: Task, dataset: Dataset, train: Shard) -> str:
    """Return a sentence on labels that are hardly the classes their user means, none if they may be."""
    if task.loss is not cross_entropy or not dataset.labelled:
        return ""
    there, classes = np.union1d(train.y, dataset.test.y), len(dataset.classes)
    missing = classes - len(there)
    if len(there) == 1:
        return (
            f"all examples of {dataset.called} are of the class {dataset.classes[there[0]]!r}: there is nothing to "
            "tell apart; give examples of others too"
        )
    if dataset.counted and len(there) > MANY and len(train) < FEW * len(there):
        return (
            f"labels of {dataset.called} are {len(there)} different whole numbers in {len(train)} examples: if they "
            "are quantities and no classes, set task.loss=mse"
        )
    if dataset.counted and missing and len(train) >= FEW * classes:
        return (
            f"labels of {dataset.called} go up to {classes - 1}, and {missing} of these {classes} classes "
            f"{'has' if missing == 1 else 'have'} no examples: number classes from 0 without a gap, or write them as "
            "words"
        )
    return ""


def untaught(dataset: Dataset, train: Shard) -> str:
    """Return a sentence on classes that are tested and not trained, none if there are none."""
    if not dataset.labelled:
        return ""
    numbers = sorted({*np.unique(dataset.test.y).tolist()} - {*np.unique(train.y).tolist()})
    missing = [dataset.classes[number] for number in numbers]
    if not missing:
        return ""
    several = f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}"
    near = get_close_matches(missing[0], [name for name in dataset.classes if name not in missing], 1, 0.8)
    if near and not dataset.counted:
        several += f" (if {near[0]!r} is meant by {missing[0]!r}, correct that)"
    return (
        f"no client trains on these classes of the test data: {several}; they will not be learned: give clients "
        "examples of them, or leave them out"
    )


def spaced_classes(dataset: Dataset) -> str:
    """Return a sentence on classes whose names differ in spaces alone, none if there are none: nobody sees that."""
    if not dataset.labelled:
        return ""
    seen: dict[str, str] = {}
    for name in dataset.classes:
        other = seen.setdefault(" ".join(name.split()), name)
        if other != name:
            return (
                f"the classes {other!r} and {name!r} of {dataset.called} differ in spaces alone, and count as two: if "
                "one is meant, take the spaces out of the labels"
            )
    return ""


def lone_classes(dataset: Dataset) -> str:
    """Return a sentence on a word that labels one example of many, none if there is none: a slip of the pen."""
    if not dataset.labelled or dataset.counted:
        return ""
    labels = np.concatenate([dataset.train.y, dataset.test.y])
    alone = np.flatnonzero(np.bincount(labels, minlength=len(dataset.classes)) == 1)
    if not len(alone) or len(labels) < FEW * len(dataset.classes):
        return ""
    name = dataset.classes[alone[0]]
    near = get_close_matches(name, [other for other in dataset.classes if other != name], 1)
    meant = f"if {near[0]!r} is meant, correct it" if near else "if another class is meant, correct it"
    return (
        f"one example of {len(labels):,} in all of {dataset.called} is of the class {name!r}: {meant}, or leave it out"
    )
