"""The run folder: what a run leaves on disk, and how another process takes it up again.

After every round a line is appended to ``rounds.jsonl`` and then the state is replaced in one step, each safely on
disk before the next. A kill or a power cut between the two leaves a line too many, which ``resume`` drops: the state
decides. The state has a checksum, and holds the settings that it came of and a digest of the log up to it.
"""

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedpm.errors import ArtifactError
from fedpm.experiment.origin import Origin
from fedpm.experiment.record import RoundRecord, Summary
from fedpm.files import absent, append_durably, make_folder, remove_temporary, sync_folder, write_atomically, writing
from fedpm.methods.base import Arrays

VERSION = "3"
"""Of checkpoints."""
_REMEDY = "restore it from a copy, or start anew in another folder"


class RunFolder:
    """A folder with config.toml, rounds.jsonl, checkpoint/, and at the end summary.json and the model.

    It is locked while it is open: ``with RunFolder.open(path) as folder``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "checkpoint" / "state.safetensors"
        self._rounds = path / "rounds.jsonl"
        self._lock: IO[bytes] | None = None
        self._logged = hashlib.blake2b(digest_size=16)

    @classmethod
    def create(cls, path: Path, config: str) -> Self:
        """Start a new folder; one that holds anything is refused, so results are never overwritten."""
        if path.exists() and not _empty(path):
            run = (path / "config.toml").is_file()
            or_ = f", or continue that run with --resume {path} (fedpm.resume in Python)" if run else ""
            what = "exists and is not empty" if path.is_dir() else "is a file"
            raise ArtifactError(f"{path} {what}: choose another folder with --out (out= in Python){or_}")
        folder = cls(path)
        make_folder(path)  # first: a fault is told of the folder that the user named
        make_folder(folder._state.parent)
        folder._take_lock()
        remove_temporary(path)
        write_atomically(folder._rounds, b"")
        write_atomically(folder.config_file, config.encode())  # last: with it, there is a run to resume
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an earlier run."""
        folder = cls(path)
        if not folder.config_file.is_file():
            begun = path.is_dir() and any(path.iterdir()) and _empty(path)
            remedy = f"its run ended before it began; start it with --out {path}" if begun else "give that of a run"
            why = "holds no config.toml, so it is not a run folder" if path.exists() else absent(path)
            raise ArtifactError(f"{path}: {why}; {remedy}")
        folder._take_lock()
        make_folder(folder._state.parent)
        for below in (path, folder._state.parent):
            remove_temporary(below)
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
        with writing(self.path):
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

    def write_config(self, config: str) -> None:
        """Replace the configuration, unless it is the same."""
        if self.config_file.read_text() != config:
            write_atomically(self.config_file, config.encode())

    def append(self, record: RoundRecord) -> None:
        """Add a round to the log."""
        line = _lines([record])
        append_durably(self._rounds, line)
        self._logged.update(line)

    def records(self, count: int | None = None) -> list[RoundRecord]:
        """Return the logged rounds, or the first ``count`` of them."""
        lines = self._rounds.read_bytes().split(b"\n") if self._rounds.exists() else []
        try:
            records: list[RoundRecord] = [json.loads(line) for line in lines[:count] if line]
            if any(record["round"] != number for number, record in enumerate(records, 1)):
                raise ValueError("rounds are out of order")
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged_log(error) from None
        return records

    def save_state(self, arrays: Arrays, origin: Origin) -> None:
        """Replace the checkpoint after a round."""
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        came_of = json.dumps(vars(origin), sort_keys=True)
        about = {"version": VERSION, "origin": came_of, "log": self._logged.hexdigest()}
        write_atomically(self._state, save(whole, {**about, "checksum": _checksum(whole, about)}))

    def load_state(self, origin: Origin) -> tuple[Arrays | None, list[RoundRecord]]:
        """Return the last checkpoint, None if there is none, and the records of the rounds that it includes.

        ``origin`` is what the run should have come of; the round is the checkpoint's to say.
        """
        arrays, done, about = None, 0, dict[str, str]()
        if self._state.exists():
            arrays, about = self._read_state()
            done = Origin(**json.loads(about["origin"])).checked(origin, self.path)
        elif self._rounds.exists() and self._rounds.read_bytes().count(b"\n") > 1:  # a kill loses one line at most
            raise ArtifactError(f"{self._state}: the checkpoint is gone, and with it what was trained; {_REMEDY}")
        records = self.records(done)
        if len(records) < done:
            raise ArtifactError(
                f"{self._rounds} holds {len(records)} rounds, but the checkpoint is of round {done}; restore the file "
                "from a copy, or start anew"
            )
        lines = _lines(records)
        self._logged.update(lines)
        if about.get("log", self._logged.hexdigest()) != self._logged.hexdigest():
            raise self._damaged_log("it is not what the checkpoint was saved with")
        write_atomically(self._rounds, lines)
        return arrays, records

    def _damaged_log(self, why: object) -> ArtifactError:
        return ArtifactError(f"{self._rounds}: a line is damaged ({why}); restore the file from a copy, or start anew")

    def _read_state(self) -> tuple[Arrays, dict[str, str]]:
        try:
            with safe_open(self._state, "np") as file:
                arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = dict(file.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{self._state}: the checkpoint cannot be read ({error}); {_REMEDY}") from None
        if about.get("version") != VERSION:
            raise self.wrong_state()
        if about.pop("checksum", "") != _checksum(arrays, about):
            raise ArtifactError(f"{self._state}: the checkpoint fails its checksum, so it was damaged; {_REMEDY}")
        return arrays, about

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

    def reopen(self) -> None:
        """Mark the run as not complete, before its next round."""
        (self.path / "summary.json").unlink(missing_ok=True)
        sync_folder(self.path)

    def write_model(self, name: str, model: bytes) -> None:
        """Write the model."""
        write_atomically(self.path / name, model)

    def finish(self, summary: Summary, name: str, model: bytes) -> None:
        """Write the results; the summary comes last and marks the run as complete."""
        self.write_model(name, model)
        self.write_json("summary.json", summary, indent=2)


def _lines(records: list[RoundRecord]) -> bytes:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()


def _empty(path: Path) -> bool:
    """Return whether a folder holds nothing but what a run leaves that was killed before it began."""
    if not path.is_dir():
        return False
    names = {file.name for file in path.iterdir() if not (file.name.startswith(".") and file.suffix == ".tmp")}
    rounds = path / "rounds.jsonl"
    begun = not rounds.exists() or not rounds.stat().st_size
    return names <= {".lock", "checkpoint", "rounds.jsonl"} and begun and not any((path / "checkpoint").glob("*"))


def _checksum(arrays: Arrays, about: dict[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
