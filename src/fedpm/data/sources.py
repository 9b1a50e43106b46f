"""Getting the official files of a public data set: from the official mirrors, else from plug-ins.

What comes from elsewhere must be the official content, to the byte, before it is put in its place in one step.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from fedpm.data.archives import read_archive, read_file
from fedpm.data.catalog import SPECS, Spec
from fedpm.data.download import TIMEOUT, Report, UnavailableError, fetch, writing
from fedpm.data.local import MANIFEST, Location, data_root, locate, read_location
from fedpm.errors import DataError
from fedpm.files import write_atomically

PLUGINS = ["fedpm.data.packages"]
"""Modules whose ``sources_of(spec)`` returns further sources, asked in this order after the official mirrors."""

Manifest = dict[str, str | dict[str, str]]


class Source(Protocol):
    """Who may have the official files of a data set."""

    @property
    def address(self) -> str:
        """What is stored beside the files, and shown while they are fetched."""

    def fetch(self, spec: Spec, folder: Path, report: Report) -> dict[str, bytes]:
        """Return the decoded files, or raise ``UnavailableError``; files left in the folder serve a later attempt."""


@dataclass(frozen=True)
class Mirror:
    """A base address of the official archives."""

    address: str
    timeout: float

    def fetch(self, spec: Spec, folder: Path, report: Report) -> dict[str, bytes]:
        """Fetch the archives, going on where an earlier attempt broke off, and read them."""
        contents: dict[str, bytes] = {}
        downloads = {archive: folder / f"{spec.name}-{archive}" for archive in spec.archives}
        for archive, path in downloads.items():
            fetch(self.address + archive, path, spec.archives[archive], report, self.timeout)
            single = archive.removesuffix(".gz")
            contents |= {single: read_file(path)} if single in spec.files else read_archive(path, spec.files)
        for path in downloads.values():
            path.unlink()
        return contents


def get(
    name: str,
    data_dir: Path | str | None = None,
    *,
    report: Report = lambda what, done, total: None,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> Location:
    """Make sure that a data folder holds the official files of a data set, and return where.

    Args:
        name: the data set.
        data_dir: the data folder; see ``data_root``.
        report: called as bytes come in.
        mirrors: base addresses of the official archives, instead of those known.
        timeout: seconds without an answer after which an address is given up.
    """
    spec, root = SPECS[name], data_root(data_dir)
    present = _official(spec, root)
    if present is not None:
        return present
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        _refuse_to_replace(root / name)
        sources = _sources(spec, spec.mirrors if mirrors is None else mirrors, timeout)
        contents, manifest = _fetch_first(spec, sources, _download_folder(root), report)
        _store(root / name, contents, manifest)
    return Location(spec, root / name, {file: root / name / file for file in spec.files})


def _official(spec: Spec, root: Path) -> Location | None:
    """Return where the official files already lie."""
    location = locate(spec.name, root)
    try:
        return location if location is not None and read_location(location).official else None
    except DataError:
        return None  # damaged: get it again


def _sources(spec: Spec, mirrors: Sequence[str], timeout: float) -> Iterator[Source]:
    """Yield who is asked for a data set, in order."""
    for address in mirrors:
        yield Mirror(address, timeout)
    for plugin in PLUGINS:
        yield from import_module(plugin).sources_of(spec)


def _fetch_first(
    spec: Spec, sources: Iterable[Source], folder: Path, report: Report
) -> tuple[dict[str, bytes], Manifest]:
    """Return the official files from the first source that gives them, with its address and their checksums."""
    reasons = []
    for source in sources:
        try:
            contents = source.fetch(spec, folder, report)
            return contents, {"source": source.address, "sha256": _verify(spec, contents, source.address)}
        except UnavailableError as reason:
            reasons.append(str(reason))
    raise DataError(
        f"{spec.title} could not be had. Tried:"
        + "".join(f"\n  {reason}" for reason in reasons)
        + "\nTry again with a network, or name a folder that holds its files with --data-dir or FEDPM_DATA."
    )


def _download_folder(root: Path) -> Path:
    """Return the folder of unfinished downloads, without what a killed source left unpacked in it."""
    folder = root / ".parts"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
    return folder


def _verify(spec: Spec, contents: Mapping[str, bytes], address: str) -> dict[str, str]:
    """Return the checksums of official files; where none are known, that of their archive has vouched for them."""
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    for name in spec.files:
        if name not in checksums:
            raise UnavailableError(f"{address}: holds no {name}")
        if checksums[name] != spec.sha256.get(name, checksums[name]):
            raise UnavailableError(f"{address}: its {name} is not the official one (wrong checksum)")
    return checksums


def _refuse_to_replace(target: Path) -> None:
    if target.exists() and not (target / MANIFEST).exists():
        raise DataError(
            f"{target} holds files that fedpm did not put there and that are not the official ones: "
            "move them elsewhere, or choose another folder with --data-dir or FEDPM_DATA"
        )


def _store(target: Path, contents: Mapping[str, bytes], manifest: Manifest) -> None:
    """Put the files in their place in one step: under that name there is never a part of them."""
    new, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    with writing(target):
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir()
        for name, data in contents.items():
            write_atomically(new / name, data)
        write_atomically(new / MANIFEST, json.dumps(manifest, indent=1).encode())
        if target.exists():
            target.rename(old)
        new.rename(target)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keep other processes from getting data into the same folder; the system drops the lock with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    with writing(root):
        lock = (root / ".lock").open("wb")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{root}: another process is getting data into this folder; wait for it") from None
        yield
