"""What a path holds that settings name: a table, a .npz file, a folder of images or of arrays."""

from pathlib import Path
from typing import Any

from fedpm.data.datasets import Dataset, dataset
from fedpm.data.federation import TEST, TRAIN, by_owner, divided, federation
from fedpm.data.files import folders, hold_classes, images, read_table, refuse_loose
from fedpm.data.folder import CLIENT, load_arrays, read_folder
from fedpm.data.given import examples
from fedpm.data.tables import by_client, column
from fedpm.errors import DataError
from fedpm.files import absent

LABEL = "label"
"""The column of a table that is the label, unless another is named."""


def of_path(
    path: Path, *, test: str | None = None, label: str | None = None, client: str | None = None, given: bool = False
) -> Dataset:
    """Return the data set of a path, a federation if it names clients.

    Args:
        path: a .csv table or a .npz file, of which a tenth is tested on; a folder of images or of arrays.
        test: the path of what is tested on instead.
        label: the column of a table that is the label.
        client: the column that names the client.
        given: whether clients have to be named.
    """
    for key, named in (("path", path), ("test", Path(test or path))):
        if not named.exists():
            raise DataError(f"data.{key} = {str(named)!r}: {absent(named)}")
    if path.is_file():
        return _one_file(path, test, label, client, given)
    for key, value in (("label", label), ("client", client)):
        if value is not None:
            raise DataError(f"data.{key} = {value!r}: names a column, and {path} is no table; leave it out")
    if path.is_dir() and any(images(place) or hold_classes(place) for place in folders(path)):
        return _image_folder(path, test)
    if path.is_dir():
        refuse_loose("data.path", path)
    arrays, classes = read_folder(path)
    if test is not None:
        raise DataError(f"data.test = {test!r}: {path} holds test_x and test_y already; leave it out")
    train, held = (arrays["train_x"], arrays["train_y"]), (arrays["test_x"], arrays["test_y"])
    name = path.resolve().name
    if CLIENT not in arrays:
        return dataset(train, held, classes=classes, name=name)
    return federation(by_owner(str(path), *train, arrays[CLIENT]), test=held, classes=classes, name=name)


def countable(path: Path) -> Path | None:
    """Return what of a path counts whole where a model is scored: a file, a folder ``class/*.png``, or the one in it.

    That one is a folder ``test`` without others beside it. None of all else, of which the test part counts.
    """
    if path.is_file():
        return path
    places = folders(path) if path.is_dir() else []
    if [place.name for place in places] == [TEST] and hold_classes(path / TEST):
        return path / TEST
    return path if any(map(images, places)) and not any(map(hold_classes, places)) else None


def whole(path: Path, known: tuple[str, ...], label: str | None = None, client: str | None = None) -> Dataset:
    """Return a data set that tests on all examples of a path; words are numbered as in ``known`` if all are there."""
    read = examples(str(path), path, label or LABEL, client or CLIENT)
    classes = known if {str(one) for one in read.y.tolist()} <= set(known) else None
    return dataset(read, read, classes=classes, name=path.stem)


def _one_file(path: Path, test: str | None, label: str | None, client: str | None, given: bool) -> Dataset:
    where, owner = str(path), client or CLIENT
    if path.suffix.lower() != ".csv":
        if label is not None:
            raise DataError(f"data.label = {label!r}: names a column, and {path} is no table; its labels are y")
        named = owner in load_arrays(path, (owner,))
        clients: Any = path if named else {path.stem: examples(where, path)}
    else:
        table = read_table(where, path)
        named = owner in table
        column(where, table, label or LABEL, "label")
        if given or client is not None:  # which refuses a table without it
            column(where, table, owner, "client")
        clients = by_client(where, table, owner) if named else {path.stem: examples(where, table, label or LABEL)}
    held = 0.1 if test is None else Path(test)
    made = federation(clients, test=held, label=label or LABEL, client=owner, name=path.stem)
    return made if named else made.at(0)


def _image_folder(path: Path, test: str | None) -> Dataset:
    """Return the federation of a folder ``client/class/*.png``, or the data set of a folder ``class/*.png``.

    A folder ``test`` beside the others holds what is tested on; without it, it is a tenth of each client's. The one
    other may be called ``train``, and is no client then.
    """
    if divided(path) and test is None:
        return dataset(path / TRAIN, path / TEST, name=path.resolve().name)
    places = [place for place in folders(path) if place.name != TEST]
    beside = (path / TEST).is_dir()
    alone = any(images(place) for place in places)
    name = path.resolve().name
    if alone and beside:
        raise DataError(
            f"{path}: holds images in {places[0].name} and a folder test; put the others into client folders"
        )
    if beside and test is not None:
        raise DataError(f"data.test = {test!r}: {path} holds a folder test already; leave one of them out")
    held: Any = path / TEST if beside else 0.1 if test is None else test
    made = federation({name: path} if alone else {place.name: place for place in places}, test=held, name=name)
    return made.at(0) if alone else made
