"""Inputs that are read when they are asked for, so that data larger than memory can train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Lazy:
    """An array as far as training looks at it: a batch is read when it is indexed, and nothing is kept.

    Args:
        read: returns the input of a number.
        numbers: of the inputs that are here.
        example: the shape of one input.
        dtype: of all of them.
    """

    read: Callable[[int], Array]
    numbers: npt.NDArray[np.intp]
    example: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all inputs together."""
        return len(self.numbers), *self.example

    @property
    def ndim(self) -> int:
        """The number of axes, that of the examples included."""
        return 1 + len(self.example)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, key: Any) -> Any:
        """Read the inputs of a number, a slice or an array of numbers; a second axis is that of the input."""
        if isinstance(key, tuple):
            return np.asarray(self[key[0]])[key[1:] if np.ndim(self.numbers[key[0]]) == 0 else (slice(None), *key[1:])]
        chosen = self.numbers[key]
        if chosen.ndim == 0:
            return self.read(int(chosen))
        batch: Array = np.empty((len(chosen), *self.example), self.dtype)
        for place, number in enumerate(chosen):
            batch[place] = self.read(int(number))
        return batch

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole: Array = self[:]
        return whole.astype(dtype or self.dtype, copy=False)

    def take(self, indices: npt.NDArray[np.intp]) -> "Lazy":
        """Return the chosen inputs, still unread."""
        return replace(self, numbers=self.numbers[indices])


@dataclass(frozen=True)
class Reader:
    """Reads one input of a client, and refuses what does not look like the first."""

    get: Callable[[int], Array]
    where: str
    example: tuple[int, ...]
    dtype: np.dtype[Any]
    name: Callable[[int], str] | None = None

    def __call__(self, number: int) -> Array:
        """Return an input."""
        x = self.get(number)
        which = self.name(number) if self.name else f"input {number}"
        if x.shape != self.example or x.dtype != self.dtype:
            raise DataError(
                f"{self.where}: {which} is {x.dtype} of shape {x.shape}, and the first {self.dtype} of shape "
                f"{self.example}; bring all to one form"
            )
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            raise DataError(f"{self.where}: {which} holds NaN or infinite values; clean it first")
        return x


def lazy(get: Callable[[int], Array], count: int, where: str, name: Callable[[int], str] | None = None) -> Lazy:
    """Return so many inputs that a function reads; the first is read now, to learn their form."""
    first = get(0)
    reader = Reader(get, where, first.shape, first.dtype, name)
    reader(0)
    return Lazy(reader, np.arange(count), first.shape, first.dtype)


@dataclass(frozen=True)
class _Joined:
    """Reads from several arrays, one after another."""

    pieces: Sequence[Array | Lazy]

    @cached_property
    def ends(self) -> npt.NDArray[np.intp]:
        return np.cumsum([len(piece) for piece in self.pieces])

    def __call__(self, number: int) -> Array:
        piece = int(np.searchsorted(self.ends, number, side="right"))
        start = self.ends[piece] - len(self.pieces[piece])
        x: Array = self.pieces[piece][int(number - start)]
        return x


def joined(pieces: Sequence[Array | Lazy]) -> Array | Lazy:
    """Return inputs of one form one after another; unread if any of them is."""
    arrays = [piece for piece in pieces if not isinstance(piece, Lazy)]
    if len(arrays) == len(pieces):
        return np.concatenate(arrays)
    count = sum(map(len, pieces))
    return Lazy(_Joined(pieces), np.arange(count), tuple(pieces[0].shape[1:]), pieces[0].dtype)
