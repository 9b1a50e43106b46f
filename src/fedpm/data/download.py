"""Fetching one file over HTTPS: with progress, resumed where the server allows it, verified before use."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpm.errors import DataError

Report = Callable[[str, int, int | None], None]
"""Called with what is being fetched, the bytes so far, and how many there will be if that is known."""

TIMEOUT = 15.0
"""Seconds without an answer, or without a byte, after which a server counts as out of reach."""

_CHUNK = 1 << 18


class UnavailableError(Exception):
    """A source that cannot give the data here, so that the next one is tried; the text says why."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while writing into one sentence that names the place and the remedy."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot write there ({error.strerror or error}); free some space, or choose another folder with "
            "--data-dir or FEDPM_DATA"
        ) from None


def fetch(url: str, path: Path, md5: str, report: Report, timeout: float = TIMEOUT) -> None:
    """Complete the file ``path``, going on where an earlier attempt broke off, and check it."""
    if path.exists() and md5_of(path) == md5:
        return
    for _ in range(2):
        resumed_from = _size(path)
        _fetch(url, path, resumed_from, report, timeout)
        if md5_of(path) == md5:
            return
        path.unlink()
        if not resumed_from:
            break  # else the earlier piece may be of another version: once more, from the start
    raise UnavailableError(f"{url}: what came fails its checksum (expected md5 {md5})")


def _fetch(url: str, path: Path, received: int, report: Report, timeout: float) -> None:
    response = _open(url, received, timeout)
    if response is None:
        return
    if response.status != 206:
        received = 0  # this server knows no ranges and starts from the beginning
    length = response.headers.get("Content-Length", "")
    total = received + int(length) if length.isdecimal() else None
    with response, writing(path), path.open("ab" if received else "wb") as file:
        while chunk := _read(response, url):
            file.write(chunk)
            file.flush()
            received += len(chunk)
            report(url, received, total)
    if total is not None and received != total:
        raise UnavailableError(
            f"{url}: the connection ended after {received:,} of {total:,} bytes; try again to go on from there"
        )


def _open(url: str, start: int, timeout: float) -> http.client.HTTPResponse | None:
    """Ask for a file from a byte on; None if the server has nothing beyond it."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
        return response
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return None  # the checksum decides whether what is there is the file
        raise UnavailableError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url}: {_reason(error)}") from None


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read1(_CHUNK)  # what is there: a connection that stalls loses nothing
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url}: {_reason(error)}; try again to go on from there") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def md5_of(path: Path) -> str:
    """Return a file's md5, the only checksum that the publishers give."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
