"""Finding and checking the files of a public data set in a local folder.

What lies there may also be other data in the official form: that is used, under a name that says so. Damage is
always an error.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpm.data.archives import read_archive, read_file
from fedpm.data.catalog import KNOWN, SPECS, Spec
from fedpm.data.download import md5_of
from fedpm.errors import DataError

MANIFEST = "fedpm.json"
"""Lies beside files that ``get`` stored, with the checksum of each."""


@dataclass(frozen=True)
class Place:
    """Where a whole data set lies: an archive, or a folder with its files."""

    spec: Spec
    path: Path
    files: Mapping[str, Path]

    @property
    def stored(self) -> bool:
        """Whether ``get`` put it there, having verified it."""
        return (self.path / MANIFEST).exists()


@dataclass(frozen=True)
class Contents:
    """The decoded files of a data set, and whether they are the official ones."""

    place: Place
    files: Mapping[str, bytes]
    official: bool


def data_root(data_dir: Path | str | None = None) -> Path:
    """Return the data folder: the one given, else FEDPM_DATA, else fedpm in the user's cache folder."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get("FEDPM_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpm"


def locate(name: str, data_dir: Path | str | None = None) -> Place | None:
    """Return where a data folder holds a data set as a whole, or None; nothing is read yet."""
    spec, root = SPECS[name], data_root(data_dir)
    places = [*_folders(spec, root), *_archives(spec, root)]
    if not spec.sha256:  # known by its archive alone, which is therefore worth more than loose files
        places.sort(key=lambda place: (not place.stored, bool(place.files)))
    return places[0] if places else None


def read(name: str, data_dir: Path | str | None = None) -> Contents:
    """Return the decoded files of a data set in a data folder, checked."""
    place = locate(name, data_dir)
    if place is None:
        raise DataError(_absent(SPECS[name], data_root(data_dir)))
    return read_place(place)


def read_place(place: Place) -> Contents:
    """Return the decoded files that lie in a place, checked."""
    if place.files:
        files = {name: read_file(path) for name, path in place.files.items()}
    else:
        files = read_archive(place.path, place.spec.files)
        if md5_of(place.path) in place.spec.archives.values():
            return Contents(place, files, official=True)
    found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    _refuse_renamed(place, found)
    expected = _manifest(place) or place.spec.sha256
    wrong = [name for name in files if found[name] != expected.get(name)]
    if wrong and (place.stored or _one_broken(place.spec, files, wrong)):
        raise DataError(
            f"{place.path}: {', '.join(wrong)} fails its checksum, so it is damaged; remove {place.path} and run: "
            f"fedpm data get {place.spec.name}"
        )
    return Contents(place, files, official=not wrong)


def _folders(spec: Spec, root: Path) -> list[Place]:
    places = []
    for folder in _candidates(spec, root):
        files = {name: path for name in spec.files if (path := _spelled(folder, name))}
        if len(files) == len(spec.files):
            places.append(Place(spec, folder, files))
    return places


def _archives(spec: Spec, root: Path) -> list[Place]:
    folders = [root, *_candidates(spec, root)]
    paths = [path for folder in folders for pattern in spec.local_archives for path in sorted(folder.glob(pattern))]
    paths.sort(key=lambda path: path.name not in spec.archives)  # the official name before a subset's
    return [Place(spec, path, {}) for path in paths]


def _candidates(spec: Spec, root: Path) -> list[Path]:
    return [f for pattern in spec.folders for f in ([root] if pattern == "." else sorted(root.glob(pattern)))]


def _spelled(folder: Path, name: str) -> Path | None:
    """Return the file of a folder that has this name, gzipped or not, or as older copies spell it."""
    names = [spelling + end for spelling in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / n for n in names if (folder / n).exists()), None)


def _refuse_renamed(place: Place, found: Mapping[str, str]) -> None:
    for name, checksum in found.items():
        home = KNOWN.get(checksum, (place.spec.name, name))
        if home != (place.spec.name, name):
            path = place.files.get(name, place.path)
            raise DataError(f"{path}: holds {home[1]} of {home[0]}, not what its name says: give it its own name back")


def _one_broken(spec: Spec, files: Mapping[str, bytes], wrong: Sequence[str]) -> bool:
    """Tell damage from other data in the same form: beside official files, one of the official size is damaged."""
    return len(wrong) < len(files) and any(len(files[name]) == _official_size(spec, name) for name in wrong)


def _official_size(spec: Spec, name: str) -> int:
    names, count = (spec.train, spec.counts[0]) if name in spec.train else (spec.test, spec.counts[1])
    channels, height, width = spec.shape
    if spec.label_bytes:
        return count // len(names) * (spec.label_bytes + channels * height * width)
    return 16 + count * height * width if name == names[0] else 8 + count


def _manifest(place: Place) -> dict[str, str]:
    """Return the checksums of stored files."""
    if not place.stored:
        return {}
    try:
        checksums: dict[str, str] = json.loads((place.path / MANIFEST).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{place.path / MANIFEST}: cannot be understood; remove {place.path} and get it again"
        ) from None
    return checksums


def _absent(spec: Spec, root: Path) -> str:
    for folder in _candidates(spec, root):
        there = [name for name in spec.files if _spelled(folder, name)]
        if there:
            missing = ", ".join(name for name in spec.files if name not in there)
            return f"{folder} holds only a part of {spec.title}: {missing} is missing; run: fedpm data get {spec.name}"
    pickles = root.glob(f"{spec.title.lower()}-*py*") if spec.label_bytes else ()  # what torchvision leaves of CIFAR
    for pickled in pickles:
        return (
            f"{pickled} holds {spec.title} as Python pickles, which may run code and are not read; "
            f"the binary version is: run fedpm data get {spec.name}"
        )
    return (
        f"{spec.title} is not in {root}: run fedpm data get {spec.name}, "
        "or name the folder that holds it with --data-dir or FEDPM_DATA"
    )
