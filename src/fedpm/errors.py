"""Every error that fedpm raises on purpose; the command line prints their text and no traceback."""

import errno
from collections.abc import Collection
from difflib import get_close_matches
from importlib.util import find_spec


def printable(text: str) -> str:
    """Return text in which nothing steers a terminal: what is not printed, but line breaks, is written as escapes.

    For words of files and of other machines.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class FedPMError(Exception):
    """Something the user can understand and mend; the message says what was wrong and what to do."""


class ConfigError(FedPMError):
    """A setting is unknown, impossible, or contradicts another."""


class DataError(FedPMError):
    """Data is missing, damaged, or does not have the expected form."""


class WireError(FedPMError):
    """A message is damaged or is not the one that was expected; ``kind`` is the word under which it is counted."""

    def __init__(self, reason: str, kind: str = "garbage") -> None:
        super().__init__(reason)
        self.kind = kind

    def __reduce__(self) -> tuple[type["WireError"], tuple[str, str]]:
        """Keep the kind on the way from a worker process."""
        return type(self), (str(self), self.kind)


class StoppedError(FedPMError):
    """Ctrl-C came; the message says what is left of the work, and how to go on."""


class ArtifactError(FedPMError):
    """A model file or a run folder is damaged, missing, or belongs to something else."""


class WriteError(ArtifactError, OSError):
    """A file or a folder cannot be written; of ``errno``, ``strerror`` and ``filename``, as any OSError."""

    def __str__(self) -> str:
        full = self.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room there, or choose another place" if full else "choose another place, where you may write"
        return f"{self.filename}: cannot be written ({self.strerror}); {remedy}"


class EngineError(FedPMError):
    """The machinery that runs the clients failed."""


def require(extra: str, what: str, package: str) -> None:
    """Raise ConfigError if a package is missing that an extra of this one brings."""
    if find_spec(package) is None:
        raise ConfigError(f"{what} needs {package}: {install(extra)}")


def install(extra: str) -> str:
    """Return the commands that install an extra of this package."""
    return f"pip install 'fedpm[{extra}]', in a clone pip install -c constraints.txt -e '.[{extra}]'"


def choices(name: str, known: Collection[str]) -> str:
    """Return what there is to choose from, the likeliest meant first."""
    near = get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}? There are: " if near else "there are: ") + ", ".join(known)
