"""Small data sets as real files, a real HTTP server, and the shared data where it is at hand."""

import gzip
import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpm.data.catalog import SPECS, Spec
from fedpm.data.packages import PACKAGES
from tests.command import cli

__all__ = ["cli"]

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("FEDPM_SHARED_DATA") or ROOT.parent / "shared" / "data")
needs_shared = pytest.mark.skipif(
    not (SHARED / "emnist-47-derived").is_dir(), reason="no ../shared/data and FEDPM_SHARED_DATA is not set"
)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def idx_files(spec: Spec, train: int = 40, test: int = 20, seed: int = 0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    files = {}
    for (x, y), count in ((spec.train, train), (spec.test, test)):
        files[x] = idx(rng.integers(0, 256, (count, 28, 28)))
        files[y] = idx(np.arange(count) % len(spec.classes))
    return files


def cifar_files(spec: Spec, each: int = 20) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    files = {}
    for name in spec.files:
        records = rng.integers(0, 256, (each, spec.label_bytes + 3072), dtype=np.uint8)
        records[:, : spec.label_bytes] = rng.integers(0, len(spec.classes), (each, 1))
        files[name] = records.tobytes()
    return files


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def gzipped(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


def pretend(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Let 'mnist' be a data set of 60 images whose official files are these, and which no package holds."""
    spec = SPECS["mnist"]
    files = idx_files(spec)
    known: dict[str, Any] = {
        "archives": {n: hashlib.md5(d, usedforsecurity=False).hexdigest() for n, d in gzipped(files).items()},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    monkeypatch.setitem(SPECS, "mnist", replace(spec, counts=(40, 20), **known))
    monkeypatch.delitem(PACKAGES, "mnist")
    return files


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    return pretend(monkeypatch)


@dataclass
class Server:
    """Files over HTTP: with or without ranges, cut off after some bytes, or stuck there."""

    files: dict[str, bytes]
    ranges: bool = True
    cut: int | None = None
    stuck: threading.Event | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server(small: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    state = Server(gzipped(small))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            data = state.files.get(self.path.lstrip("/"))
            if data is None:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start >= len(data):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:] if state.cut is None else data[start : start + state.cut])
            if state.stuck is not None:
                self.wfile.flush()
                state.stuck.wait(30)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))  # seconds that its end takes
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}/"
    yield state
    if state.stuck is not None:
        state.stuck.set()
    http.shutdown()
    http.server_close()
    thread.join()
