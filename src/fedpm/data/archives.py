"""Reading files and archives whole: plain, gzip, zip, tar; damage is one clear sentence."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

from fedpm.errors import DataError
from fedpm.files import unreadable

_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, RuntimeError)


def read_file(path: Path) -> bytes:
    """Return a file's content, decompressed if its name ends in .gz."""
    try:
        return _decompressed(path.name, path.read_bytes())
    except _DAMAGE as error:
        raise DataError(_damage_message(path, error)) from None
    except OSError as error:
        raise DataError(unreadable(path, error)) from None


def read_archive(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the named files of a zip or tar archive, wherever in it they lie; each may be gzipped inside."""
    try:
        members = _zip(path, names) if path.suffix == ".zip" else _tar(path, names)
    except _DAMAGE as error:
        raise DataError(_damage_message(path, error)) from None
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    missing = [name for name in names if name not in members]
    if missing:
        raise DataError(f"{path}: holds no {', '.join(missing)}; it is not the archive that its name says")
    return members


def _zip(path: Path, names: Collection[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        paths = {Path(path).name: path for path in archive.namelist()}
        members = {name: name if name in paths else f"{name}.gz" for name in names}
        return {
            name: _decompressed(member, archive.read(paths[member]))
            for name, member in members.items()
            if member in paths
        }


def _tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    members = {}
    whole = io.BytesIO(gzip.decompress(path.read_bytes()))  # to its end, where the checksum of the stream is
    with tarfile.open(fileobj=whole) as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if member.isfile() and name in names else None
            if file is not None:
                members[name] = file.read()
    return members


def _decompressed(name: str, data: bytes) -> bytes:
    return gzip.decompress(data) if name.endswith(".gz") else data


def _damage_message(path: Path, error: Exception) -> str:
    return f"{path}: is cut or damaged ({error or type(error).__name__}); remove it and get it again"
