"""Federated learning at a fraction of a bit per parameter: masks over frozen random networks.

>>> import fedpm
>>> result = fedpm.run("quickstart", rounds=1, local={"epochs": 1}, workers=1)
>>> result.model.training
False
"""

TYPE_CHECKING = False  # as in typing: nothing is imported before fedpm.__main__ can turn Ctrl-C into a sentence
if TYPE_CHECKING:
    from typing import Any

    from fedpm.config import Config
    from fedpm.config import load as load_config
    from fedpm.data.datasets import Dataset, dataset, load_dataset
    from fedpm.data.federation import Federation, federation
    from fedpm.data.ondemand import on_demand
    from fedpm.errors import ArtifactError, ConfigError, DataError, EngineError, FedPMError, WireError
    from fedpm.experiment.api import resume, run
    from fedpm.experiment.observers import Round
    from fedpm.experiment.result import Result
    from fedpm.model.file import Model
    from fedpm.model.masking import MaskedNetwork
    from fedpm.model.weights import load
    from fedpm.training.metrics import metric

    __version__: str

_WHERE = {
    "Config": "config:Config",
    "Dataset": "data.datasets:Dataset",
    "Federation": "data.federation:Federation",
    "MaskedNetwork": "model.masking:MaskedNetwork",
    "Model": "model.file:Model",
    "Result": "experiment.result:Result",
    "Round": "experiment.observers:Round",
    "dataset": "data.datasets:dataset",
    "federation": "data.federation:federation",
    "load": "model.weights:load",
    "load_config": "config:load",
    "load_dataset": "data.datasets:load_dataset",
    "metric": "training.metrics:metric",
    "on_demand": "data.ondemand:on_demand",
    "resume": "experiment.api:resume",
    "run": "experiment.api:run",
} | {
    name: f"errors:{name}"
    for name in ("ArtifactError", "ConfigError", "DataError", "EngineError", "FedPMError", "WireError")
}

__all__ = [
    "ArtifactError",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "EngineError",
    "FedPMError",
    "Federation",
    "MaskedNetwork",
    "Model",
    "Result",
    "Round",
    "WireError",
    "dataset",
    "federation",
    "load",
    "load_config",
    "load_dataset",
    "metric",
    "on_demand",
    "resume",
    "run",
]


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first used, so that the command line starts without torch."""
    from importlib import import_module

    if name == "__version__":
        return import_module("importlib.metadata").version("fedpm")
    if name not in _WHERE:
        raise AttributeError(f"module 'fedpm' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(import_module(f"fedpm.{module}"), attribute)
