"""Writing files so that a kill at any moment leaves the old content or the new, never a torn one."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file by new content in one step, and only once that is safely on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
