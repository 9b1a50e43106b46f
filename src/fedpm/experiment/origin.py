"""What a run came of, and whether it is the same when the run is continued."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpm.config import LENGTH
from fedpm.config.loading import differences
from fedpm.errors import ArtifactError


@dataclass(frozen=True)
class Origin:
    """What a checkpoint came of: network and data, the settings that results depend on, and how many rounds."""

    identity: str
    settings: dict[str, Any]
    round: int = 0

    def checked(self, wanted: "Origin", folder: Path) -> int:
        """Return the round of the checkpoint in a folder, or raise ArtifactError if it came of something else."""
        if self.identity != wanted.identity:
            raise ArtifactError(
                f"{folder}: this run was started with {self._others(wanted)}: give what it began with, or start a new "
                "run in another folder"
            )
        if changed := differences(self._lasting(), wanted._lasting()):
            raise ArtifactError(
                f"{folder / 'config.toml'} was changed since the run began ({'; '.join(changed)}): put that back, or "
                "start anew in another folder"
            )
        return self.round

    def _lasting(self) -> dict[str, Any]:
        """Return the settings that must not change when a run is resumed."""
        return {key: value for key, value in self.settings.items() if key not in LENGTH}

    def _others(self, wanted: "Origin") -> str:
        """Return in words what a run did not begin with: the network, the data, or both."""
        parts = zip(self.identity.split("-"), wanted.identity.split("-"), strict=True)
        network, data = (before != now for before, now in parts)
        file = f" than {wanted.settings['data.path']} holds now" if wanted.settings.get("data.path") else ""
        return " and ".join(filter(None, ["another network" * network, f"other data{file}" * data]))
