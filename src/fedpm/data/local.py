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
from fedpm.data.catalog import FILE_BY_SHA256, SPECS, Spec
from fedpm.data.download import md5_of
from fedpm.errors import DataError

MANIFEST = "fedpm.json"
"""Lies beside files that ``get`` stored, with the checksum of each."""


@dataclass(frozen=True)
class Location:
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

    location: Location
    files: Mapping[str, bytes]
    official: bool


def data_root(data_dir: Path | str | None = None) -> Path:
    """Return the data folder: the one given, else FEDPM_DATA, else fedpm in the user's cache folder."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get("FEDPM_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpm"


def locate(name: str, data_dir: Path | str | None = None) -> Location | None:
    """Return where a data folder holds a data set as a whole, or None; nothing is read yet."""
    spec, root = SPECS[name], data_root(data_dir)
    locations = [*_in_folders(spec, root), *_in_archives(spec, root)]
    if not spec.sha256:  # known by its archive alone, which is therefore worth more than loose files
        locations.sort(key=lambda location: (not location.stored, bool(location.files)))
    return locations[0] if locations else None


def read(name: str, data_dir: Path | str | None = None) -> Contents:
    """Return the decoded files of a data set in a data folder, checked."""
    location = locate(name, data_dir)
    if location is None:
        raise DataError(_absence_message(SPECS[name], data_root(data_dir)))
    return read_location(location)


def read_location(location: Location) -> Contents:
    """Return the decoded files that lie in a location, checked."""
    if location.files:
        files = {name: read_file(path) for name, path in location.files.items()}
    else:
        files = read_archive(location.path, location.spec.files)
        if md5_of(location.path) in location.spec.archives.values():
            return Contents(location, files, official=True)
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    _refuse_renamed(location, checksums)
    expected = _stored_checksums(location) or location.spec.sha256
    mismatched = [name for name in files if checksums[name] != expected.get(name)]
    if mismatched and (location.stored or _is_damaged(location.spec, files, mismatched)):
        raise DataError(
            f"{location.path}: {', '.join(mismatched)} fails its checksum, so it is damaged; "
            f"remove {location.path} and run: fedpm data get {location.spec.name}"
        )
    return Contents(location, files, official=not mismatched)


def _in_folders(spec: Spec, root: Path) -> list[Location]:
    locations = []
    for folder in _candidate_folders(spec, root):
        files = {name: path for name in spec.files if (path := _find_file(folder, name))}
        if len(files) == len(spec.files):
            locations.append(Location(spec, folder, files))
    return locations


def _in_archives(spec: Spec, root: Path) -> list[Location]:
    folders = [root, *_candidate_folders(spec, root)]
    paths = [path for folder in folders for pattern in spec.local_archives for path in sorted(folder.glob(pattern))]
    paths.sort(key=lambda path: path.name not in spec.archives)  # the official name before a subset's
    return [Location(spec, path, {}) for path in paths]


def _candidate_folders(spec: Spec, root: Path) -> list[Path]:
    return [f for pattern in spec.folders for f in ([root] if pattern == "." else sorted(root.glob(pattern)))]


def _find_file(folder: Path, name: str) -> Path | None:
    """Return the file of a folder that has this name, gzipped or not, or as older copies spell it."""
    names = [spelling + end for spelling in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / n for n in names if (folder / n).exists()), None)


def _refuse_renamed(location: Location, checksums: Mapping[str, str]) -> None:
    for name, checksum in checksums.items():
        dataset, file = FILE_BY_SHA256.get(checksum, (location.spec.name, name))
        if (dataset, file) != (location.spec.name, name):
            path = location.files.get(name, location.path)
            raise DataError(f"{path}: holds {file} of {dataset}, not what its name says: give it its own name back")


def _is_damaged(spec: Spec, files: Mapping[str, bytes], mismatched: Sequence[str]) -> bool:
    """Tell damage from other data in the same form: beside official files, one of the official size is damaged."""
    return len(mismatched) < len(files) and any(len(files[name]) == _official_size(spec, name) for name in mismatched)


def _official_size(spec: Spec, name: str) -> int:
    if len(spec.shape) != 3:
        return -1  # no image, and so of any size
    names, count = (spec.train, spec.counts[0]) if name in spec.train else (spec.test, spec.counts[1])
    channels, height, width = spec.shape
    if spec.label_bytes:
        return count // len(names) * (spec.label_bytes + channels * height * width)
    return 16 + count * height * width if name == names[0] else 8 + count


def _stored_checksums(location: Location) -> dict[str, str]:
    """Return the checksums of stored files."""
    if not location.stored:
        return {}
    try:
        checksums: dict[str, str] = json.loads((location.path / MANIFEST).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{location.path / MANIFEST}: cannot be understood; remove {location.path} and get it again"
        ) from None
    return checksums


def _absence_message(spec: Spec, root: Path) -> str:
    for folder in _candidate_folders(spec, root):
        present = [name for name in spec.files if _find_file(folder, name)]
        if present:
            missing = ", ".join(name for name in spec.files if name not in present)
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
