"""Public data sets from their official files."""

from pathlib import Path

from fedpm.data import local
from fedpm.data.datasets import Dataset, dataset
from fedpm.data.formats import decode


def public(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Return a public data set from the files in a data folder, under a name that says whether they are official."""
    contents = local.read(name, data_dir)
    spec = contents.location.spec
    train, test = decode(spec, contents.files)
    title = spec.title
    if not contents.official:
        checkable = bool(spec.sha256) or (len(train[1]), len(test[1])) != spec.counts
        title += " (derived: not the official files)" if checkable else " (not verified: gzip.zip is not at hand)"
    return dataset(train, test, classes=spec.classes, name=title)
