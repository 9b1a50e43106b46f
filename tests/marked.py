"""Which processes a test has left behind: those whose environment names its folder."""

import time
from pathlib import Path


def marked(folder: Path, patience: float = 0.0) -> dict[int, str]:
    """Return the command lines of the processes, but zombies, that bear a folder's mark, once they had time to end."""
    end = time.monotonic() + patience
    while (lines := _lines(str(folder).encode())) and time.monotonic() < end:
        time.sleep(0.1)
    return lines


def _lines(mark: bytes) -> dict[int, str]:
    lines = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes():  # which of a zombie is empty
                lines[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return lines
