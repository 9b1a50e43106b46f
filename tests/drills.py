"""Disasters for short runs: faults at operations on files, power cuts on a disk of their own, and damaged files."""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedpm
from fedpm.config import Config
from fedpm.data.datasets import Dataset
from fedpm.errors import ArtifactError
from fedpm.experiment.folder import RunFolder
from tests.small import small_config, small_net

OPERATIONS = ("open", "write", "fsync", "replace", "mkdir", "unlink")


class Faults:
    """Counts operations on files, and lets one of them fail."""

    def __init__(self, failing: int = -1) -> None:
        self.failing, self.count = failing, 0

    def wrap(self, name: str) -> Callable[..., Any]:
        """Return an operation that fails when its turn comes."""
        real = getattr(os, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count - 1 == self.failing:
                if name == "write":  # the disk is full half-way
                    real(args[0], args[1][: len(args[1]) // 2])
                raise OSError(28, f"no space left for {name}")
            return real(*args, **kwargs)

        return operation


@contextmanager
def faulty(failing: int = -1) -> Iterator[Faults]:
    """Let an operation on files fail, the first being number 0."""
    faults = Faults(failing)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, faults.wrap(name))
        yield faults


def begin_or_resume(out: Path, data: Dataset, **how: Any) -> fedpm.Result:
    """Run as a user would who tries again: continue what is there, or begin."""
    if (out / "config.toml").is_file():
        return fedpm.resume(out, net=small_net(), data=data, **how)
    return fedpm.run(short_config(), net=small_net(), data=data, out=out, **how)


def short_config(rounds: int = 2) -> Config:
    """Return the settings of a run of a second."""
    return small_config(rounds=rounds, local={"epochs": 1}, clients={"total": 2})


def survive_fault(number: int, out: Path, data: Dataset) -> bytes | None:
    """Let one operation of a run fail, try again, and return the model; None if the run never came that far."""
    with faulty(number) as faults:
        with suppress(OSError, ArtifactError):
            begin_or_resume(out, data)
        if faults.count <= number:
            return None
    return begin_or_resume(out, data).file.to_bytes()


def stop_after_a_round(out: Path, data: Dataset) -> Path:
    """Begin a run, and break it off after its first round."""

    def stop(round: fedpm.Round) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        fedpm.run(short_config(), net=small_net(), data=data, out=out, on_round=stop)
    return out


def survive_damage(begun: Path, out: Path, data: Dataset, rng: random.Random) -> bytes | None:
    """Flip a bit of the checkpoint or the log of a run, take it up, and return the model; None if that is refused."""
    shutil.copytree(begun, out)
    file = out / rng.choice(["checkpoint/state.safetensors", "rounds.jsonl"])
    damaged = bytearray(file.read_bytes())
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    file.write_bytes(damaged)
    try:
        return fedpm.resume(out, net=small_net(), data=data).file.to_bytes()
    except ArtifactError:
        return None


def power_cuts(folder: Path, data: Dataset, rounds: int = 2) -> list[Path]:
    """Run on a disk of its own, and return what a power cut after each round would leave of it; needs root."""
    images: list[Path] = []
    with own_disk(folder) as (mounted, disk):

        def cut(round: fedpm.Round) -> None:
            images.append(folder / f"cut{round['round']}")
            shutil.copyfile(disk, images[-1])  # what is on the disk now, and not what the system still holds in memory

        fedpm.run(short_config(rounds), net=small_net(), data=data, out=mounted / "run", on_round=cut)
    return images


def survive_cut(image: Path, done: int, data: Dataset) -> bytes | None:
    """Continue the run on a disk after a power cut, and return the model; None if it does not have all rounds done."""
    where = image.with_suffix(".mounted")
    where.mkdir()
    with mount(image, where):
        if len(RunFolder(where / "run").records()) != done:
            return None
        return fedpm.resume(where / "run", net=small_net(), data=data).file.to_bytes()


@contextmanager
def own_disk(folder: Path, megabytes: int = 24) -> Iterator[tuple[Path, Path]]:
    """Give a file system of its own, and the file that is its disk; needs root."""
    disk, mounted = folder / "disk", folder / "mounted"
    mounted.mkdir()
    with disk.open("wb") as file:
        file.truncate(megabytes * 2**20)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    with mount(disk, mounted):
        yield mounted, disk


@contextmanager
def mount(disk: Path, where: Path) -> Iterator[Path]:
    """Mount a disk."""
    subprocess.run(["mount", "-o", "loop", disk, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


@cache
def can_mount() -> bool:
    """Return whether this machine lets us mount a disk of our own: root may not, in a container."""
    if os.name != "posix" or os.geteuid() or not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        return False
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(subprocess.CalledProcessError),
        own_disk(Path(folder), megabytes=4),
    ):
        return True
    return False
