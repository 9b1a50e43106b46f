"""Every error that fedpm raises on purpose; the command line prints their text and no traceback."""


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


class ArtifactError(FedPMError):
    """A model file or a run folder is damaged, missing, or belongs to something else."""


class EngineError(FedPMError):
    """The machinery that runs the clients failed."""
