"""Labels as people have them: integers, truth values and words as numbers of classes; other targets as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import DataError, choices

MOST = 1_000_000
"""Classes, at most, if nobody names them: beyond it labels are some other number, such as an identity."""
Targets = npt.NDArray[Any]
"""int64 for a class an example; else numbers or truth values, of any shape an example."""


def numbered(
    given: Mapping[str, npt.NDArray[Any]], classes: Sequence[str] | None = None
) -> tuple[list[Targets], tuple[str, ...]]:
    """Return the labels of each place as numbers of classes, and the names of all classes.

    Integers are numbers already. Words and truth values are numbered in the order of the names, or sorted. Other
    targets (fractions, several an example) are what a network gives itself: the names are those of its outputs.

    Args:
        given: the labels of each place; its name begins the sentence of an error.
        classes: the names of the classes, if the caller says them.
    """
    for name in classes or ():
        if list(classes or ()).count(name) > 1:
            raise DataError(f"classes: {name!r} is there twice; give each class a name of its own")
    kinds = {where: _kind(where, labels) for where, labels in given.items()}
    first, kind = next(iter(kinds.items()))
    for where, other in kinds.items():
        if other != kind:
            raise DataError(f"{where}: labels are {other}, and those of {first} {kind}; use one kind for all")
    if kind.startswith(("numbers", "several")):
        return _targets(given, classes)
    if kind == "integers":
        return [labels.astype(np.int64) for labels in given.values()], _names(given, classes)
    words = {where: labels.astype(str) for where, labels in given.items()}
    known = tuple(classes or sorted(set().union(*(set(labels.tolist()) for labels in words.values()))))
    number = {name: place for place, name in enumerate(known)}
    for where, labels in words.items():
        for label in sorted(set(labels.tolist()) - number.keys()):
            raise DataError(f"{where}: label {label!r} is none of the classes; {choices(label, known)}")
    return [np.array([number[label] for label in labels.tolist()], np.int64) for labels in words.values()], known


def _kind(where: str, labels: npt.NDArray[Any]) -> str:
    """Return what labels are: integers, truth values, words, numbers, or several of them an example."""
    if labels.ndim == 1 and labels.dtype == object and any(isinstance(label, str) for label in labels):
        for place, label in enumerate(labels):
            if not isinstance(label, str):
                raise DataError(f"{where}: label {place} is {label!r}, and others are words; fill it, or leave it out")
        return "words"
    if labels.ndim == 1 and labels.dtype.kind in "US":
        return "words"
    if labels.ndim == 1 and labels.dtype == np.bool_:
        return "truth values"
    if labels.ndim == 0 or labels.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: labels should be integers from 0, words, truth values or numbers, one row an example, and are "
            f"{labels.dtype} of shape {labels.shape}"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        first = int(np.argwhere(~np.isfinite(labels))[0][0])
        raise DataError(f"{where}: label {first} holds NaN or infinite values; clean it first")
    if labels.ndim > 1:
        return f"several of shape {labels.shape[1:]}"
    if labels.dtype.kind == "f":
        return "numbers"
    if int(labels.min()) < 0:
        raise DataError(
            f"{where}: a label is {labels.min()}; classes should be numbered 0, 1, …; if labels are quantities, give "
            f"y.astype(float), in a table {labels.min()}.0, and set task.loss=mse"
        )
    return "integers"


def _targets(
    given: Mapping[str, npt.NDArray[Any]], classes: Sequence[str] | None
) -> tuple[list[Targets], tuple[str, ...]]:
    """Return targets that are no row of classes, of one type, and the names of a network's outputs."""
    arrays = list(given.values())
    shape = arrays[0].shape[1:]
    if any(array.dtype.kind == "f" for array in arrays):
        arrays = [array.astype(np.float32) for array in arrays]
    elif all(array.dtype == np.bool_ or set(np.unique(array)) <= {0, 1} for array in arrays):
        arrays = [array.astype(np.bool_) for array in arrays]
    else:
        return arrays, _names(given, classes)
    columns = shape[0] if len(shape) == 1 else 0
    return arrays, tuple(classes or (map(str, range(columns)) if shape else ("value",)))


def _names(given: Mapping[str, npt.NDArray[Any]], classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of classes that have numbers."""
    top, where = max((int(labels.max()), where) for where, labels in given.items())
    if top >= MOST and not classes:
        raise DataError(
            f"{where}: a label is {top}; labels should be integers from 0, one a class: number the classes; if labels "
            f"are quantities, give y.astype(float), in a table {top}.0, and set task.loss=mse"
        )
    names = tuple(classes) if classes else tuple(str(label) for label in range(top + 1))
    if top >= len(names):
        raise DataError(f"{where}: a label is {top}, but {len(names)} classes are named; labels start at 0")
    return names
