"""Tables, a row an example: a label column, perhaps a client column, and numbers in all others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import DataError, choices

_COUNTED = "row {}, counted from 0"


class Table(Mapping[str, npt.NDArray[Any]]):
    """The columns of a table by name.

    Args:
        columns: the values of each.
        rows: by which sentences know each row: a line of a file, the index of a pandas table, or its place.
        called: such a sentence.
    """

    def __init__(
        self, columns: Mapping[str, Any], rows: npt.NDArray[Any] | None = None, called: str = _COUNTED
    ) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}
        self._rows, self._called = rows, called

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def row(self, place: int) -> str:
        """Return what a sentence calls the row of a place."""
        return self._called.replace("{}", str(place if self._rows is None else self._rows[place]), 1)

    def without(self, name: str) -> "Table":
        """Return the table without a column, if it is there."""
        return Table({key: values for key, values in self.items() if key != name}, self._rows, self._called)

    def of(self, chosen: npt.NDArray[np.bool_]) -> "Table":
        """Return the chosen rows."""
        rows = None if self._rows is None else self._rows[chosen]
        return Table({name: values[chosen] for name, values in self.items()}, rows, self._called)


def is_frame(source: Any) -> bool:
    """Return whether something is a table as pandas has it."""
    return hasattr(source, "columns") and hasattr(source, "to_numpy")


def columns_of(where: str, frame: Any) -> Table:
    """Return the columns of a pandas table."""
    check_names(where, [str(name) for name in frame.columns])
    index = getattr(frame, "index", None)  # other libraries have none
    rows, called = (None, _COUNTED) if index is None else (np.asarray(index), "the row of index {}")
    return Table({str(name): frame[name].to_numpy() for name in frame.columns}, rows, called)


def check_names(where: str, names: Sequence[str]) -> None:
    """Refuse two columns of one name, of which one would be lost, and one without a name, such as an index."""
    for place, name in enumerate(names):
        if not name.strip() or name.startswith("Unnamed: "):  # which is how pandas reads it
            raise DataError(
                f"{where}: column {place + 1} has no name; name it, or leave it out: the index of a pandas table by "
                "to_csv(…, index=False)"
            )
        if name in names[:place]:
            raise DataError(f"{where}: two columns have the name {name!r}; rename or leave out one")


def column(where: str, table: Table, name: str, what: str) -> npt.NDArray[Any]:
    """Return a column that is ``what``, the label or the client."""
    if name not in table:
        raise DataError(
            f"{where}: there is no column {name!r}; {choices(name, tuple(table))}; say which is the {what}, "
            f"{what}='…' in Python, data.{what} in settings, --{what} of a command"
        )
    return table[name]


def parted(where: str, table: Table, label: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], tuple[str, ...]]:
    """Return the inputs of a table, a row each, its labels, and the names of the inputs' columns."""
    labels = column(where, table, label, "label")
    if len({np.shape(values)[:1] for values in table.values()}) > 1:
        lengths = ", ".join(f"{name} {np.size(values)}" for name, values in table.items())
        raise DataError(f"{where}: columns differ in length ({lengths}); bring all to one")
    inputs = {name: _numbers(where, name, values, table.row) for name, values in table.items() if name != label}
    if not inputs:
        raise DataError(f"{where}: {label!r} is the only column; there should be others, of numbers, to learn from")
    return np.stack(list(inputs.values()), axis=1), labels, tuple(inputs)


def in_order(where: str, x: Any, columns: Sequence[str], wanted: Sequence[str], whose: str) -> Any:
    """Return the inputs of a table with its columns as wanted, by their names; what has no names stays as it is.

    Args:
        where: the table.
        x: its inputs.
        columns: their names.
        wanted: all names, in the order that inputs should have.
        whose: they are.
    """
    if not columns or not wanted or tuple(columns) == tuple(wanted):
        return x
    lacks, more = (_named(one, other) for one, other in ((wanted, columns), (columns, wanted)))
    if lacks or more:
        faults = [f"lacks {lacks} of {whose}" if lacks else "", f"has {more}, which {whose} has not" if more else ""]
        raise DataError(f"{where}: {' and '.join(filter(None, faults))}; give it the same columns")
    return x[:, [columns.index(name) for name in wanted]]


def _named(names: Sequence[str], others: Sequence[str]) -> str:
    """Return which names are not among the others, as words of a sentence."""
    only = [repr(name) for name in names if name not in others]
    few = ", ".join(only[:5]) + (f" … ({len(only)} in all)" if len(only) > 5 else "")
    return f"the column{'s' if len(only) > 1 else ''} {few}" if only else ""


def by_client(where: str, table: Table, client: str) -> dict[str, Table]:
    """Return the rows of each client, in the order in which the clients first appear."""
    owners, rest = column(where, table, client, "client").astype(str), table.without(client)
    return {name: rest.of(owners == name) for name in dict.fromkeys(owners.tolist())}


def _numbers(where: str, name: str, values: npt.NDArray[Any], row: Callable[[int], str]) -> npt.NDArray[np.float32]:
    if values.dtype.kind in "cmM":
        raise DataError(
            f"{where}: column {name!r} holds {values.dtype}; inputs should be numbers, so encode this column"
        )
    if values.dtype.kind in "fO" and len(rows := np.flatnonzero(_missing(values))):
        raise DataError(
            f"{where}: column {name!r} is empty ({values[rows[0]]}) in {row(int(rows[0]))}; fill it, or leave "
            "that row out"
        )
    try:
        return values.astype(np.float32)
    except (ValueError, TypeError):
        place, wrong = next((place, value) for place, value in enumerate(values.tolist()) if not _is_number(value))
        raise DataError(
            f"{where}: column {name!r} holds {wrong!r} in {row(place)}; inputs should be numbers, with a point "
            "before decimals: mend the cell, or encode or leave out this column; if it names clients, say so "
            f"(--client {name}, data.client={name}, client={name!r} in Python)"
        ) from None


def _missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a column holds nothing: NaN, None, or what pandas has for it, which equals nothing."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return np.array([value is None or type(value).__name__ == "NAType" or value != value for value in values])


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
