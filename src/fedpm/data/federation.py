"""A federation: data that lie at several places, each with its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.data.datasets import OWN, Dataset, Shard, preprocessing_of
from fedpm.data.files import folders, hold_classes, read_table
from fedpm.data.folder import load_arrays
from fedpm.data.given import agreed, examples
from fedpm.data.labels import numbered
from fedpm.data.lazy import joined
from fedpm.data.partition import Indices
from fedpm.data.tables import by_client, columns_of, is_frame
from fedpm.errors import DataError
from fedpm.rng import Streams

TEST = "test"
"""The folder beside those of clients that holds what the server tests on."""
TRAIN = "train"
"""And beside that one, the folder that holds all else: it is no client."""
_SHARE = 0.1  # of each client's examples, unless said


@dataclass(frozen=True, repr=False)
class Federation(Dataset):
    """A data set whose training examples belong to clients.

    Args:
        clients: the names of the clients.
        owner: the client of each training example, by number.
        validation: what the server chooses on; None for a share of each client's examples.
        test_owner: the client of each test example, by number; None if they are the server's.
        validation_owner: likewise.
    """

    clients: tuple[str, ...] = ()
    owner: Indices = field(default_factory=lambda: np.zeros(0, np.intp))
    validation: Shard | None = None
    test_owner: Indices | None = None
    validation_owner: Indices | None = None

    def at(self, client: int | None) -> Dataset:
        """Return what one place of a fleet holds: a client's examples, or what the server (None) chooses on."""
        if client is not None and not 0 <= client < len(self.clients):
            raise DataError(f"client {client}: there are {len(self.clients)} clients, from 0; use fewer nodes")
        train = self.validation if client is None else self.train.take(self.parts()[client])
        if train is None:
            raise DataError("the server has no examples to choose on; give federation(…, validation=…)")
        about = (self.name, train, self.test, self.classes, self.preprocessing)
        return Dataset(*about, columns=self.columns, named=self.named)

    def parts(self) -> list[Indices]:
        """Return the numbers of each client's training examples."""
        order, sizes = np.argsort(self.owner, kind="stable"), np.bincount(self.owner, minlength=len(self.clients))
        for name, size in zip(self.clients, sizes.tolist(), strict=True):
            if size == 0:
                raise DataError(f"client {name}: no examples are left to train with; leave it out, or use more data")
        return np.split(order, np.cumsum(sizes)[:-1])

    def limited(self, examples: int | None, seed: int, test_examples: int | None = None) -> "Federation":
        """Return the federation with only so many examples to train and to test on, drawn by the seed."""
        kept, tested = (
            self._drawn(part, Shard(np.arange(len(shard)), np.arange(len(shard))), count, seed).y
            for part, shard, count in (("train", self.train, examples), (TEST, self.test, test_examples))
        )
        owner = None if self.test_owner is None else self.test_owner[tested]
        train, test = self.train.take(kept), self.test.take(tested)
        return replace(self, train=train, owner=self.owner[kept], test=test, test_owner=owner)

    def with_validation(self, share: float, seed: int) -> "Federation":
        """Return the federation with examples to choose on, cut from the clients' if it has none."""
        if self.validation is not None:
            return self
        made, held, owner = self._without(share, seed, "validation")
        return replace(made, validation=held, validation_owner=owner)

    def _without(self, share: float, seed: int, what: str) -> tuple["Federation", Shard, Indices]:
        """Cut the same share of each client's examples off, and return it with whose each is."""
        if not 0 < share < 1:
            raise DataError(f"{what} = {share}: a share of each client's examples should lie between 0 and 1")
        held = np.zeros(len(self.owner), bool)
        for name, part in zip(self.clients, self.parts(), strict=True):
            order = Streams(seed).permutation(f"{what} of {name}", len(part))
            held[part[order[: round(share * len(part))]]] = True
        if not held.any():
            raise DataError(
                f"{what} = {share}: no client has examples enough for that share; use a larger one, or give {what} "
                "data of the server's own"
            )
        kept = np.flatnonzero(~held)
        rest = replace(self, train=self.train.take(kept), owner=self.owner[kept])
        rest.parts()  # refuses a client that would have nothing left
        return rest, self.train.take(np.flatnonzero(held)), self.owner[held]


def federation(
    clients: Any,
    *,
    validation: Any = None,
    test: Any = _SHARE,
    label: str = "label",
    client: str = "client",
    classes: tuple[str, ...] | None = None,
    name: str = OWN,
    preprocessing: str = "",
) -> Federation:
    """Make a federation of data as they lie at several places.

    Args:
        clients: the data of each client by its name, or a list of them; each as ``fedpm.dataset`` takes it. Or all in
            one: a table with a column of clients, or the path of a .csv, of a .npz with the members x, y and client, or
            of a folder ``client/class/*.png``.
        validation: what the server chooses on: data of its own, or a share of each client's; unless given, the share
            that ``data.validation`` says.
        test: what the server reports on, likewise; unless given, a folder ``test`` beside those of clients, else a
            tenth of each client's.
        label: the column of a table that is the label.
        client: the column of a table that names the client; in tables of clients and of the server it is no input.
        classes: the names of the classes; without it those that occur.
        name: of the data, for reports.
        preprocessing: how raw inputs were made into these, as a formula.
    """
    sources = {f"client {place}": source for place, source in _places(clients, client).items()}
    if not sources:
        raise DataError("a federation of no clients; give the data of one at least")
    if test is None:
        raise DataError("test = None: there should be something to report on; give data, or a share of each client's")
    test = _tested(clients, test)
    server = {what: source for what, source in (("test", test), ("validation", validation)) if not _is_share(source)}
    every = sources | server
    given, columns = agreed({where: examples(where, source, label, client) for where, source in every.items()})
    labels, names = numbered({where: one.y for where, one in given.items()}, classes)
    shards = {where: Shard(one.x, y) for (where, one), y in zip(given.items(), labels, strict=True)}
    own = [shards[where] for where in sources]
    made = Federation(
        name,
        Shard(joined([shard.x for shard in own]), np.concatenate([shard.y for shard in own])),
        shards.get("test", own[0]),
        names,
        preprocessing_of(own[0], preprocessing),
        tuple(where.removeprefix("client ") for where in sources),
        np.repeat(np.arange(len(own)), [len(shard) for shard in own]),
        shards.get("validation"),
        columns=columns,
        named={"label": label, "client": client} if columns else {},
    )
    if "test" not in server:
        made, held, owner = made._without(test, 0, "test")
        made = replace(made, test=held, test_owner=owner)
    if "validation" not in server and validation is not None:
        made = made.with_validation(validation, 0)
    return made


def _tested(clients: Any, test: Any) -> Any:
    """Return what is tested on: of a folder of clients its folder ``test``, if there is one."""
    beside = Path(clients) / TEST if isinstance(clients, str | Path) else None
    if beside is None or not beside.is_dir():
        return test
    if not _is_share(test) or test != _SHARE:
        raise DataError(f"test: {clients} holds a folder test already; leave out test=…, or that folder")
    return beside


def _is_share(source: Any) -> bool:
    return source is None or isinstance(source, Real)


def _places(clients: Any, client: str) -> dict[str, Any]:
    """Return the data of each client by its name."""
    if isinstance(clients, Mapping):
        named = {str(name): source for name, source in clients.items()}
        if len(named) < len(clients):
            raise DataError(f"clients {', '.join(map(repr, clients))}: two have one name; give each its own")
        return named
    if is_frame(clients):
        return dict(by_client("the table", columns_of("the table", clients), client))
    if isinstance(clients, str | Path):
        return _of_path(Path(clients), client)
    if isinstance(clients, Sequence):
        return {str(number): source for number, source in enumerate(clients)}
    raise DataError(
        f"a {type(clients).__name__} is no federation; give the data of each client by name, a list of them, a table, "
        "or the path of one"
    )


def _of_path(path: Path, client: str) -> dict[str, Any]:
    if path.is_dir() and divided(path):
        raise DataError(
            f"{path}: holds the folders train and test, and none of clients; give fedpm.load_dataset({str(path)!r}), "
            "which is divided among clients"
        )
    if path.is_dir():
        return {place.name: place for place in folders(path) if place.name != TEST}
    if path.suffix.lower() == ".npz" and path.exists():
        arrays = load_arrays(path, ("x", "y", client))
        if missing := [member for member in ("x", "y", client) if member not in arrays]:
            raise DataError(f"{path}: {', '.join(missing)} is missing; a federation has the members x, y and {client}")
        return by_owner(str(path), arrays["x"], arrays["y"], arrays[client])
    if path.suffix.lower() == ".csv":
        return dict(by_client(str(path), read_table(str(path), path), client))
    raise DataError(f"{path}: neither a folder nor a .csv or .npz file that is there; give one of these")


def divided(path: Path) -> bool:
    """Return whether a folder holds images in train/class and test/class, and nobody's else."""
    return [place.name for place in folders(path)] == [TEST, TRAIN] and hold_classes(path / TRAIN)


def by_owner(where: str, x: Any, y: Any, owners: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the examples of each client, in the order in which the clients first appear."""
    if not owners.ndim == 1 or not len(owners) == len(x) == len(y):
        raise DataError(
            f"{where}: {len(x)} inputs, {len(y)} labels and clients of shape {owners.shape}; there should be one "
            "client an input"
        )
    names = owners.astype(str)
    return {name: (x[names == name], y[names == name]) for name in dict.fromkeys(names.tolist())}
