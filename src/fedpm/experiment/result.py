"""What a run gives: the model that is shipped, and a summary."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from fedpm.data.datasets import Dataset
from fedpm.experiment.build import Experiment
from fedpm.experiment.record import RoundRecord, Summary, byte_size, clients_of, headline, in_rounds, scores_of
from fedpm.experiment.statistics import layers, versions
from fedpm.model.file import MAX_HEADER, Model
from fedpm.model.weights import Weights
from fedpm.rng import SecretStreams


@dataclass(frozen=True)
class Result:
    """What a run gives: the trained network, its model file, a summary, and a record a round.

    The file is a seed and a mask, or of methods that train weights, those.
    """

    model: nn.Module
    file: Model | Weights
    summary: Summary
    rounds: list[RoundRecord]

    def __repr__(self) -> str:
        told = self.summary
        sizes = [byte_size(told[key]) for key in ("uplink_bytes", "downlink_bytes", "model_bytes")]
        return (
            f"<fedpm.Result: {headline(told)} after {in_rounds(told['rounds'])}, {sizes[0]} up, {sizes[1]} down, model "
            f"{sizes[2]}; see .summary, .rounds, .file, .model>"
        )


def finish(
    experiment: Experiment,
    state: Any,
    records: list[RoundRecord],
    *,
    shipped: RoundRecord,
    ended: str,
    privacy: dict[str, Any],
) -> Result:
    """Make the final model and sum the run up.

    ``state`` and ``shipped`` are of the round whose model is shipped, and ``privacy`` is what the run guarantees, if
    anything.
    """
    method = experiment.method
    file = model_file(experiment, state, shipped, privacy)
    size = len(file.to_bytes())
    network = method.network
    summary: Summary = {
        **scores_of(shipped),  # type: ignore[typeddict-item]
        **clients_of(shipped),
        "round": shipped["round"],
        "algorithm": experiment.algorithm,
        "rounds": len(records),
        "ended": ended,
        "parameters": network.size,
        "uplink_bytes": sum(record["uplink_bytes"] for record in records),
        "downlink_bytes": sum(record["downlink_bytes"] for record in records),
        "uplink_bpp": sum(record["uplink_bpp"] for record in records) / len(records),
        "downlink_bpp": sum(record["downlink_bpp"] for record in records) / len(records),
        **_by_the_paper(records),
        "layers": layers(network, method.mask(state, shipped["mode"])),
        "model_bytes": size,
        "model_bpp": 8 * size / network.size,
        "seconds": round(sum(record["seconds"] for record in records), 3),
        "repeatable": not isinstance(experiment.clients.streams, SecretStreams),
        **privacy,
        "versions": versions(),
    }
    return Result(file.module(None if experiment.network_name else network.whole()), file, summary, records)


def _by_the_paper(records: list[RoundRecord]) -> dict[str, float]:
    """Return the bits per parameter that the paper would have counted for the uploads."""
    bits = [bpp for record in records if (bpp := record.get("uplink_paper_bpp")) is not None]
    return {"uplink_paper_bpp": sum(bits) / len(bits)} if bits else {}


def _columns(dataset: Dataset) -> dict[str, Any]:
    """Return what a model file says of the columns of a table: their names, unless they would fill its header."""
    told = {"columns": list(dataset.columns), **dataset.named}
    return told if dataset.columns and len(json.dumps(told)) <= MAX_HEADER // 4 else {}


def model_file(experiment: Experiment, state: Any, shipped: RoundRecord, privacy: dict[str, Any]) -> Model | Weights:
    """Return the final model as it is shipped."""
    method, dataset = experiment.method, experiment.dataset
    provenance = {
        "config": experiment.provenance,
        "data": dataset.name,
        **_columns(dataset),
        "fedpm": version("fedpm"),
        "round": shipped["round"],
        **{key: value for key, value in scores_of(shipped).items() if key != "loss"},
        **privacy,
    }
    about = {
        "network": experiment.network_name,
        "input_shape": dataset.input_shape,
        "input_dtype": "int64" if dataset.train.x.dtype == np.int64 else "float32",
        "classes": dataset.classes,
        "preprocessing": dataset.preprocessing,
        "provenance": provenance,
    }
    mask = method.mask(state, shipped["mode"])
    if mask is None:
        return Weights.of(method.module(state, shipped["mode"]), parameters=method.network.size, **about)
    return Model.make(method.network, mask, method.stats(state), seed=experiment.seed, **about)
