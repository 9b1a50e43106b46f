"""The run folder: what a run leaves on disk, and how another process takes it up again.

After every round a line is appended to ``rounds.jsonl`` and then the state is replaced in one step. A kill
between the two leaves a line too many, which ``resume`` drops: the state decides.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedpm import config as configs
from fedpm.config import Config
from fedpm.errors import ArtifactError
from fedpm.files import write_atomically

S = TypeVar("S")
Record = dict[str, Any]


class RunFolder:
    """A folder with config.toml, rounds.jsonl, checkpoint/, and at the end summary.json and the model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "checkpoint" / "state.safetensors"
        self._rounds = path / "rounds.jsonl"
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunFolder":
        """Start a new folder; one that holds anything is refused, so results are never overwritten."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ArtifactError(
                f"{path} exists and is not empty: choose another --out, or continue that run with --resume {path}"
            )
        folder = cls(path)
        folder._state.parent.mkdir(parents=True, exist_ok=True)
        folder.lock()
        write_atomically(path / "config.toml", configs.to_toml(config).encode())
        folder._rounds.touch()
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an earlier run."""
        if not (path / "config.toml").is_file():
            raise ArtifactError(f"{path} is not a run folder: it has no config.toml; give the folder that --out named")
        folder = cls(path)
        folder.lock()
        return folder

    def lock(self) -> None:
        """Keep other processes from writing here; the system drops the lock when this process ends."""
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        self._lock = (self.path / ".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(f"{self.path} is in use by another process: wait for that run, or end it") from None

    def close(self) -> None:
        """Let other processes write here."""
        if self._lock is not None:
            self._lock.close()

    def config(self) -> Config:
        """Return the configuration of the run."""
        return configs.load(self.path / "config.toml")

    def append(self, record: Record) -> None:
        """Add a round to the log."""
        with self._rounds.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def records(self) -> list[Record]:
        """Return the logged rounds."""
        return [json.loads(line) for line in self._rounds.read_text().splitlines()]

    def save_state(self, state: Any, identity: str) -> None:
        """Replace the checkpoint; ``identity`` tells network and data from others."""
        tensors = {field.name: np.asarray(getattr(state, field.name)) for field in fields(state)}
        write_atomically(self._state, save(tensors, {"identity": identity}))

    def load_state(self, initial: S, identity: str) -> S:
        """Return the last checkpoint (or the initial state), and cut the log to the rounds it includes."""
        state = initial
        if self._state.exists():
            try:
                with safe_open(self._state, "np") as file:
                    found = (file.metadata() or {}).get("identity")
                    values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise ArtifactError(f"{self._state}: the checkpoint cannot be read ({error})") from None
            if found != identity:
                raise ArtifactError(f"{self.path}: this run was started with another network or other data; give those")
            wanted = {field.name for field in fields(initial)}  # type: ignore[arg-type]
            if set(values) != wanted:
                held, due = (", ".join(sorted(names)) for names in (values, wanted))
                raise ArtifactError(
                    f"{self._state}: the checkpoint is of another version of fedpm, for it holds {held} instead of "
                    f"{due}; continue it with that version, or start anew in another folder"
                )
            state = type(initial)(**{n: v if v.ndim else v.item() for n, v in values.items()})
        done: int = state.round  # type: ignore[attr-defined]
        lines = self._rounds.read_text().splitlines()[:done] if self._rounds.exists() else []
        if len(lines) < done:
            raise ArtifactError(f"{self._rounds} holds {len(lines)} rounds, but the checkpoint is of round {done}")
        write_atomically(self._rounds, "".join(line + "\n" for line in lines).encode())
        return state

    def finish(self, summary: Record, name: str, model: bytes) -> None:
        """Write the results; the summary comes last and marks the run as complete."""
        write_atomically(self.path / name, model)
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())
