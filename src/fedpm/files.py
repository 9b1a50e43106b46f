"""Writing files so that a kill or a power cut at any moment leaves the old content or the new, never a torn one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path

from fedpm.errors import ArtifactError, WriteError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def absent(path: Path) -> str:
    """Return the sentence on a path at which nothing lies, with what may be meant."""
    near: list[str] = []
    with suppress(OSError):
        near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1)
    return "there is no such file or folder" + (f"; did you mean {path.parent / near[0]}?" if near else "")


def unreadable(path: Path | str, error: OSError) -> str:
    """Return the sentence on a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: {absent(Path(path))}"
    return f"{path}: cannot read this file ({error.strerror or error})"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what cannot be written by the name that its user knows, which is not that of a temporary file."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file by new content in one step, and return only once that is safely on disk.

    The file is new, and its permissions are ``mode`` (less the user's mask) from its first moment on.
    """
    if not path.parent.is_dir():
        raise ArtifactError(f"{path}: there is no folder {path.parent} to write to; make it first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with writing(path):
        try:
            _write(temporary, _NEW, mode, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def append_durably(path: Path, data: bytes) -> None:
    """Add to the end of a file, and return only once that is safely on disk."""
    with writing(path):
        _write(path, _MORE, 0o666, data)


def _write(path: Path, flags: int, mode: int, data: bytes) -> None:
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; their names are safely on disk when this returns."""
    with writing(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder safely to disk; Windows does so by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)
