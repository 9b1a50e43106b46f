"""Clients whose data are loaded when they take part, and forgotten then: for federations of any size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedpm.data.datasets import OWN, Dataset, Shard, dataset
from fedpm.data.given import Examples, agreed, examples
from fedpm.data.labels import numbered
from fedpm.errors import DataError


def _nobody(client: int) -> Any:
    raise DataError(f"client {client}: there is nothing to load it with")


@dataclass(frozen=True, repr=False)
class OnDemand(Dataset):
    """A data set of clients of which none is here; ``train`` is what the server chooses on, which looks alike.

    Args:
        count: of the clients.
        load: returns what a client has, by its number, as ``fedpm.dataset`` takes it.
        label: the column of a table that is the label.
    """

    count: int = 0
    load: Callable[[int], Any] = _nobody
    label: str = "label"

    def __repr__(self) -> str:
        told = f"{self.count:,} clients that are loaded on demand, {len(self.test):,} examples to test on"
        return f"<fedpm.OnDemand: {self.name}, {told}, {len(self.classes)} classes>"

    @property
    def clients(self) -> range:
        """The clients, by number."""
        return range(self.count)

    def shard(self, client: int) -> Shard:
        """Load a client's examples."""
        where, like = f"client {client}", self.train
        server = Examples(like.x, like.y, self.columns)
        one = agreed({"the server": server, where: examples(where, self.load(client), self.label)})[0][where]
        labels = numbered({where: one.y}, self.classes)[0][0]
        if labels.dtype != like.y.dtype or labels.shape[1:] != like.y.shape[1:]:
            raise DataError(
                f"{where}: labels are {labels.dtype}, and the server's {like.y.dtype}; use one kind for all"
            )
        return Shard(one.x, labels)

    def at(self, client: int | None) -> Dataset:
        """Return what one place of a fleet holds: a client's examples, or what the server (None) chooses on."""
        if client is not None and client not in self.clients:
            raise DataError(f"client {client}: there are {self.count} clients, from 0; use fewer nodes")
        train = self.train if client is None else self.shard(client)
        about = (self.name, train, self.test, self.classes, self.preprocessing)
        return Dataset(*about, columns=self.columns, named=self.named)

    def as_numbers(self) -> Dataset:
        """Return the same: labels that are not here yet stay as they are loaded."""
        return self

    def limited(self, examples: int | None, seed: int, test_examples: int | None = None) -> Dataset:
        """Return the data set with only so many examples to test on, drawn by the seed."""
        if examples is not None:
            raise DataError(f"data.train_examples = {examples}: clients are loaded on demand; load fewer examples")
        return super().limited(None, seed, test_examples)


def on_demand(
    load: Callable[[int], Any],
    count: int,
    *,
    validation: Any,
    test: Any,
    label: str = "label",
    classes: tuple[str, ...] | None = None,
    name: str = OWN,
    preprocessing: str = "",
) -> OnDemand:
    """Make a federation of clients whose data a function loads when they take part; nothing of them is kept.

    Args:
        load: returns the data of a client by its number, as ``fedpm.dataset`` takes them; the same ones each time.
        count: how many clients there are.
        validation: what the server chooses on, as ``fedpm.dataset`` takes it.
        test: what the server tests on, in the same forms.
        label: the column of a table that is the label.
        classes: the names of the classes; without it those that occur in the server's data.
        name: of the data, for reports.
        preprocessing: how raw inputs were made into these, as a formula.
    """
    if count < 1:
        raise DataError(f"count = {count}: there should be one client at least")
    server = dataset(validation, test, classes=classes, name=name, preprocessing=preprocessing, label=label)
    about = (server.name, server.train, server.test, server.classes, server.preprocessing)
    return OnDemand(*about, count, load, label, columns=server.columns, named=server.named)
