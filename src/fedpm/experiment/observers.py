"""Who is told of each round as it ends: loggers and the progress bar of its record, the caller with a handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedpm.experiment.record import RoundRecord

if TYPE_CHECKING:  # the command line shows progress, and starts without torch
    from torch import nn

Observer = Callable[[RoundRecord], None]
"""What is called with the record of each round."""


class Round(Mapping[str, Any]):
    """A round that has just ended and is safe on disk, as ``on_round`` is given it.

    As a mapping it is its record: ``round["accuracy"]`` is ``round.record["accuracy"]``.
    """

    def __init__(self, record: RoundRecord, module: Callable[[], nn.Module]) -> None:
        self.record = record
        self.stopped = False
        self._module = module

    def model(self) -> nn.Module:
        """Return the network of this round in eval mode, a copy that is yours; made anew at each call."""
        return self._module()

    def stop(self) -> None:
        """End training after this round; ``fedpm.resume`` goes on from here."""
        self.stopped = True

    def __getitem__(self, key: str) -> Any:
        return self.record[key]  # type: ignore[literal-required]

    def __iter__(self) -> Iterator[str]:
        return iter(self.record)

    def __len__(self) -> int:
        return len(self.record)


Callback = Callable[[Round], None]
"""What the caller may give as ``on_round``."""
