"""What an app folder's run config says: all keys of an experiment, and what stands under ``app``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedpm.config import Config, nested, parse
from fedpm.data.datasets import Dataset
from fedpm.data.federation import Federation
from fedpm.data.ondemand import OnDemand
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.build import Experiment, build
from fedpm.training.task import imported

NODE_KEYS = ("data.dir", "data.path", "data.test", "device")
"""Keys that a node may set for itself in its node config: they name what its machine has."""


@dataclass(frozen=True)
class AppSettings:
    """An experiment, the run folder on the server, and hooks for network and data of one's own."""

    config: Config
    out: str
    network: str = ""
    data: str = ""

    @classmethod
    def read(cls, run: Mapping[str, Any], node: Mapping[str, Any] | None = None) -> "AppSettings":
        """Read Flower's flat run config, and what a node's own config replaces in it."""
        of_node = {key: value for key, value in (node or {}).items() if key in NODE_KEYS}
        tables = nested({**run, **of_node})
        app = tables.pop("app", {})
        unknown = set(app) - {"out", "network", "data"}
        if unknown or not isinstance(app.get("out", ""), str) or not app.get("out"):
            raise ConfigError(f"app = {app}: should give out (the run folder), and may give network and data")
        return cls(of_fleet(parse({**tables, "engine": "flower"})), **app)

    def build(self, client: int | None, columns: Sequence[str] = ()) -> Experiment:
        """Make the experiment of one place: a client, whose table is ordered by the server's, or the server (None)."""
        made = build(self.config, **self.hooks(client), columns=columns)
        if client is not None and made.dataset.columns and not columns:
            raise DataError(
                f"{made.dataset.called}: a table, and the server's data are none, so that places may differ unnoticed "
                "in the order of their columns; give the server a table with the same columns, or give arrays here"
            )
        return made

    def hooks(self, client: int | None) -> dict[str, Any]:
        """Return network and data of the user's own, as ``build`` takes them."""
        net = _call("app.network", self.network, nn.Module) if self.network else None
        data = _call("app.data", self.data, Dataset, client) if self.data else None
        if isinstance(data, Federation | OnDemand):
            data = data.at(client)
        return {"net": net, "data": data, "remote": data is not None}


def of_fleet(config: Config) -> Config:
    """Let clients draw in secret unless told otherwise, and refuse a guarantee that the fleet's server could undo."""
    privacy = config.privacy
    if privacy.unit != "none" and privacy.secret is False:
        raise ConfigError(
            "privacy.secret = false: the server of a fleet knows the seed, could take the noise off again, and so the "
            "stated ε would protect nobody; set privacy.secret = true"
        )
    return config.model_copy(update={"privacy": privacy.model_copy(update={"secret": privacy.secret is not False})})


def _call(key: str, hook: str, kind: type, *arguments: Any) -> Any:
    """Call a function of a module in the app folder."""
    result = imported(key, hook)(*arguments)
    if not isinstance(result, kind):
        raise ConfigError(f"{key} = {hook!r}: gave {result!r:.80}; it should give a {kind.__name__}")
    return result
