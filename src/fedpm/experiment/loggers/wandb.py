"""Weights & Biases: a run of its project ``fedpm``; with WANDB_MODE=offline only in the run folder's ``wandb``."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from fedpm.errors import ConfigError
from fedpm.experiment.loggers import About, scalars
from fedpm.experiment.observers import Observer
from fedpm.experiment.record import RoundRecord
from fedpm.files import make_folder, write_atomically

PROJECT = "fedpm"


@contextmanager
def log(about: About) -> Iterator[Observer]:
    """Write a round's scalars; a resumed run goes on in the same run."""
    import wandb

    try:
        run = wandb.init(
            project=PROJECT,
            name=about.folder.resolve().name,
            dir=str(about.folder),
            id=_id(about),
            resume="allow",
            config=dict(about.settings),
            settings=wandb.Settings(silent=True),
        )
    except wandb.Error as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"wandb = true: {reason}; or keep the run here, with WANDB_MODE=offline") from None

    def write(record: RoundRecord) -> None:
        run.log(scalars(record, about.layers), step=record["round"])

    failed = 1
    try:
        yield write
        failed = 0
    finally:
        run.finish(exit_code=failed)


def _id(about: About) -> str:
    """Return the id of the run: that of the run folder, which is told there, or a new one."""
    known = about.folder / "wandb" / "run_id"
    if not known.is_file():
        make_folder(known.parent)
        write_atomically(known, secrets.token_hex(8).encode())
    return known.read_text()
