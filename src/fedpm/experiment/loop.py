"""The round loop, which exists here and nowhere else, and what a run gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from fedpm.data.partition import histogram
from fedpm.engines.base import Engine
from fedpm.errors import ConfigError
from fedpm.experiment.build import Experiment
from fedpm.experiment.folder import Origin, RunFolder
from fedpm.experiment.observers import Observer, TensorBoard
from fedpm.experiment.record import RoundRecord, Summary
from fedpm.experiment.round import run_round
from fedpm.experiment.statistics import layers, versions
from fedpm.model.export import Weights
from fedpm.model.file import Model
from fedpm.privacy.budget import Ledger

_CLIENTS = 1000  # whose classes are written down, at most


@dataclass(frozen=True)
class Result:
    """What a run gives: the trained network, its model file, a summary, and a record a round.

    The file is a seed and a mask, or of methods that train weights, those.
    """

    model: nn.Module
    file: Model | Weights
    summary: Summary
    rounds: list[RoundRecord]


def train(
    experiment: Experiment,
    folder: RunFolder | None,
    on_round: Observer,
    start: Callable[[Experiment], Engine],
) -> Result:
    """Run the rounds that are left, and return the result."""
    method = experiment.method
    origin = experiment.origin()
    state, records = _resumed(experiment, folder, origin)
    ledger = Ledger(experiment.guarantee, (record["clients"] for record in records))
    observers = [*_observers(experiment, folder, state.round), on_round]
    with _running(start, experiment) as engine:
        while state.round < experiment.rounds and ledger.affords(experiment.participation.of(state.round + 1)):
            state, record = run_round(experiment, engine, state)
            spent = ledger.charge(record["clients"])
            if spent is not None:
                record["epsilon"] = spent
            records.append(record)
            if folder is not None:
                folder.append(record)
                folder.save_state(method.to_arrays(state), replace(origin, round=state.round))
            for observer in observers:
                observer(record)
    result = _finish(experiment, state, records, ledger.statement())
    if folder is not None:
        folder.finish(result.summary, result.file.name, result.file.to_bytes())
    return result


@contextmanager
def _running(start: Callable[[Experiment], Engine], experiment: Experiment) -> Iterator[Engine]:
    engine = start(experiment)
    try:
        yield engine
    finally:
        engine.close()


def _resumed(experiment: Experiment, folder: RunFolder | None, origin: Origin) -> tuple[Any, list[RoundRecord]]:
    """Return the state and the records of a folder, or those before the first round."""
    arrays, records = folder.load_state(origin) if folder else (None, [])
    if folder is None or arrays is None:
        return experiment.method.init(), []
    try:
        return experiment.method.from_arrays(arrays), records
    except (KeyError, ValueError):
        raise folder.wrong_state() from None


def _observers(experiment: Experiment, folder: RunFolder | None, done: int) -> list[Observer]:
    """Write what is known before the first round, and return who is told of each round beside the caller."""
    if folder is not None:
        _write_classes(folder, experiment)
    if not experiment.tensorboard:
        return []
    if folder is None:
        raise ConfigError("tensorboard = true writes into the run folder: give one, out=…")
    return [TensorBoard(folder.path, done)]


def _write_classes(folder: RunFolder, experiment: Experiment) -> None:
    """Write how many examples of each class each client holds, unless only the clients themselves know."""
    clients = experiment.clients
    if sum(map(len, clients.parts)) > len(clients.train):
        return  # the data of one place, which stand for those of every client
    classes = experiment.dataset.classes
    counts = histogram(clients.train.y, list(clients.parts[:_CLIENTS]), len(classes))
    content = {"classes": list(classes), "clients": len(clients.parts), "counts": counts.tolist()}
    folder.write_json("clients.json", content)


def _finish(experiment: Experiment, state: Any, records: list[RoundRecord], privacy: dict[str, Any]) -> Result:
    """Make the final model and sum the run up; ``privacy`` is what the run guarantees, if anything."""
    method, last = experiment.method, records[-1]
    file = _model_file(experiment, state, last, privacy)
    size = len(file.to_bytes())
    network = method.network
    summary: Summary = {
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "mode": last["mode"],
        "validation_accuracy": last["validation_accuracy"],
        "algorithm": experiment.algorithm,
        "rounds": len(records),
        "parameters": network.size,
        "uplink_bytes": sum(record["uplink_bytes"] for record in records),
        "downlink_bytes": sum(record["downlink_bytes"] for record in records),
        "uplink_bpp": sum(record["uplink_bpp"] for record in records) / len(records),
        "downlink_bpp": sum(record["downlink_bpp"] for record in records) / len(records),
        "layers": layers(network, method.mask(state, last["mode"])),
        "model_bytes": size,
        "model_bpp": 8 * size / network.size,
        "seconds": round(sum(record["seconds"] for record in records), 3),
        **privacy,  # type: ignore[typeddict-item]
        "versions": versions(),
    }
    return Result(file.module(None if experiment.network_name else network.net), file, summary, records)


def _model_file(experiment: Experiment, state: Any, last: RoundRecord, privacy: dict[str, Any]) -> Model | Weights:
    """Return the final model as it is shipped."""
    method, dataset = experiment.method, experiment.dataset
    provenance = {
        "config": experiment.provenance,
        "data": dataset.name,
        "fedpm": version("fedpm"),
        "round": last["round"],
        "mode": last["mode"],
        "accuracy": last["accuracy"],
        "validation_accuracy": last["validation_accuracy"],
        **privacy,
    }
    mask = method.mask(state, last["mode"])
    if mask is None:
        return Weights(method.module(state, last["mode"]), provenance)
    return Model.make(
        method.network,
        mask.astype(np.uint8),
        method.stats(state),
        seed=experiment.seed,
        network=experiment.network_name,
        input_shape=dataset.input_shape,
        input_dtype="int64" if dataset.train.x.dtype == np.int64 else "float32",
        classes=dataset.classes,
        preprocessing=dataset.preprocessing,
        provenance=provenance,
    )
