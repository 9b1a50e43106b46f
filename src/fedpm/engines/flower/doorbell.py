"""What tells the server of a fleet that a node has answered, where there is such a thing."""

import time
from collections.abc import Collection
from typing import Protocol


class Doorbell(Protocol):
    """How the server and nodes tell each other that a message is there, beside Flower."""

    def ring(self, node: int) -> None:
        """Tell a node that it was sent a message."""

    def wait(self, seconds: float) -> Collection[int]:
        """Return nodes that have answered in full, as soon as there are any; none after so many seconds."""


class NoBell:
    """Nobody rings."""

    def ring(self, node: int) -> None:
        """Do nothing."""

    def wait(self, seconds: float) -> Collection[int]:
        """Wait."""
        time.sleep(seconds)
        return ()
