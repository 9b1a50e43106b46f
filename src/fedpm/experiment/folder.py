"""The run folder: what a run leaves on disk, and how another process takes it up again.

After every round a line is appended to ``rounds.jsonl`` and then the state is replaced in one step. A kill
between the two leaves a line too many, which ``resume`` drops: the state decides.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedpm.errors import ArtifactError
from fedpm.experiment.record import RoundRecord, Summary
from fedpm.files import write_atomically
from fedpm.methods.base import Arrays


class RunFolder:
    """A folder with config.toml, rounds.jsonl, checkpoint/, and at the end summary.json and the model.

    It is locked while it is open: ``with RunFolder.open(path) as folder``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "checkpoint" / "state.safetensors"
        self._rounds = path / "rounds.jsonl"
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, config: str) -> Self:
        """Start a new folder; one that holds anything is refused, so results are never overwritten."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ArtifactError(
                f"{path} exists and is not empty: choose another --out, or continue that run with --resume {path}"
            )
        folder = cls(path)
        folder._state.parent.mkdir(parents=True, exist_ok=True)
        folder._take_lock()
        write_atomically(path / "config.toml", config.encode())
        folder._rounds.touch()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an earlier run."""
        if not (path / "config.toml").is_file():
            raise ArtifactError(f"{path} is not a run folder: it has no config.toml; give the folder that --out named")
        folder = cls(path)
        folder._take_lock()
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_lock(self) -> None:
        """Keep other processes from writing here; the system drops the lock when this process ends."""
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        self._lock = (self.path / ".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ArtifactError(f"{self.path} is in use by another process: wait for that run, or end it") from None

    def close(self) -> None:
        """Let other processes write here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def config_file(self) -> Path:
        """Where the configuration of the run is."""
        return self.path / "config.toml"

    def append(self, record: RoundRecord) -> None:
        """Add a round to the log."""
        with self._rounds.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def records(self) -> list[RoundRecord]:
        """Return the logged rounds."""
        return [json.loads(line) for line in self._rounds.read_text().splitlines()]

    def save_state(self, arrays: Arrays, round: int, identity: str) -> None:
        """Replace the checkpoint after a round; ``identity`` tells network and data from others."""
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomically(self._state, save(whole, {"identity": identity, "round": str(round)}))

    def load_state(self, identity: str) -> Arrays | None:
        """Return the last checkpoint, None if there is none, and cut the log to the rounds it includes."""
        arrays, done = None, 0
        if self._state.exists():
            arrays, about = self._read_state()
            if about.get("identity") != identity:
                raise ArtifactError(f"{self.path}: this run was started with another network or other data; give those")
            done = int(about.get("round", "0"))
        lines = self._rounds.read_text().splitlines()[:done] if self._rounds.exists() else []
        if len(lines) < done:
            raise ArtifactError(f"{self._rounds} holds {len(lines)} rounds, but the checkpoint is of round {done}")
        write_atomically(self._rounds, "".join(line + "\n" for line in lines).encode())
        return arrays

    def _read_state(self) -> tuple[Arrays, dict[str, str]]:
        try:
            with safe_open(self._state, "np") as file:
                arrays: dict[str, npt.NDArray[Any]] = {
                    name: file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118
                }
                return arrays, file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{self._state}: the checkpoint cannot be read ({error})") from None

    def wrong_state(self) -> ArtifactError:
        """Return the error for a checkpoint that holds something else than the method needs."""
        return ArtifactError(
            f"{self._state}: the checkpoint is of another version of fedpm or of another method; continue it with that "
            "version, or start anew in another folder"
        )

    def write_json(self, name: str, content: Any, *, indent: int | None = None) -> None:
        """Write a file of facts about the run."""
        text = json.dumps(content, indent=indent, allow_nan=False) + "\n"
        write_atomically(self.path / name, text.encode())

    def finish(self, summary: Summary, name: str, model: bytes) -> None:
        """Write the results; the summary comes last and marks the run as complete."""
        write_atomically(self.path / name, model)
        self.write_json("summary.json", summary, indent=2)
