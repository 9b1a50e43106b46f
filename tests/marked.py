"""Which processes a test has left behind: those whose environment names its folder."""

import re
import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path


def marked(folder: Path, patience: float = 0.0) -> dict[int, str]:
    """Return the command lines of the processes, but zombies, that bear a folder's mark, once they had time to end."""
    end = time.monotonic() + patience
    while (lines := _lines(str(folder).encode())) and time.monotonic() < end:
        time.sleep(0.1)
    return lines


def listening(folder: Path) -> set[IPv4Address | IPv6Address]:
    """Return the addresses on which the processes that bear a folder's mark accept connections."""
    sockets = set()
    for pid in marked(folder):
        sockets.update(re.findall(r"socket:\[([0-9]+)\]", " ".join(open_files(pid))))
    places = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
            if fields[3] == "0A" and fields[9] in sockets:  # LISTEN
                places.add(_address(bytes.fromhex(fields[1].partition(":")[0])))
    return places


def open_files(pid: int) -> set[str]:
    """Return what a process has open, as paths or as kinds with a number."""
    names = set()
    with suppress(OSError):  # ended by now
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed by now
                names.add(str(file.readlink()))
    return names


def _address(words: bytes) -> IPv4Address | IPv6Address:
    """Return an address from its 32-bit words, each of which Linux shows in the order of this machine."""
    address = ip_address(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))
    return getattr(address, "ipv4_mapped", None) or address


def _lines(mark: bytes) -> dict[int, str]:
    lines = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes():  # which of a zombie is empty
                lines[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return lines
