"""The round loop, which exists here and nowhere else, and what a run gives."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedpm.config import Config, settings_of
from fedpm.config.sections import FlowerConfig
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Engine, Task
from fedpm.experiment.build import OWN, Experiment, build, start_engine
from fedpm.experiment.folder import Record, RunFolder
from fedpm.experiment.participation import participants
from fedpm.experiment.record import layers, observed, of_theta, versions
from fedpm.experiment.round import Exchange, finite
from fedpm.methods.base import Algorithm
from fedpm.model.export import Weights
from fedpm.model.file import Model
from fedpm.privacy.budget import Ledger, check_resumable
from fedpm.training.evaluation import evaluate
from fedpm.training.local import threads

_NO_PROVENANCE: dict[str, Any] = {
    **dict.fromkeys(("workers", "engine", "tensorboard", "flower"), True),
    "data": {"dir", "path"},
}
"""Settings that change no result, and paths, which are nobody else's business."""


@dataclass(frozen=True)
class Result:
    """What a run gives: the trained network, its model file, a summary, and a record a round.

    The file is a seed and a mask, or of algorithms that train weights, those.
    """

    model: nn.Module
    file: Model | Weights
    summary: Record
    rounds: list[Record]


def run(
    config: Config,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Collection[str] = (),
    remote: bool = False,
    out: Path | str | None = None,
    on_round: Callable[[Record], None] = lambda record: None,
    start: Callable[[Experiment], Engine] | None = None,
) -> Result:
    """Train, and return the result; with ``out`` also leave a run folder that can be resumed.

    Args:
        config: the settings.
        net: a network of your own, instead of ``model.name``.
        data: a data set of your own (``fedpm.dataset``), instead of ``data.name``.
        frozen: parameters or modules of ``net`` that keep their value, unmasked.
        remote: clients hold data of their own, and ``data`` is what the server chooses and tests on.
        out: the run folder; it must be new or empty.
        on_round: called with the record of each round as it ends.
        start: starts another engine than ``config.engine`` names.
    """
    experiment = build(config, net=net, data=data, frozen=frozen, remote=remote)
    folder = None if out is None else RunFolder.create(Path(out), experiment.config)
    return _train(experiment, folder, on_round, start or start_engine)


def resume(
    folder: Path | str,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Collection[str] = (),
    workers: int | Literal["auto"] | None = None,
    flower: FlowerConfig | None = None,
    remote: bool = False,
    on_round: Callable[[Record], None] = lambda record: None,
    start: Callable[[Experiment], Engine] | None = None,
) -> Result:
    """Continue the run of a folder; it ends in the same model as an undisturbed run."""
    opened = RunFolder.open(Path(folder))
    changes = {"workers": workers, "flower": flower}
    config = opened.config().model_copy(update={key: value for key, value in changes.items() if value is not None})
    check_resumable(config)
    experiment = build(config, net=net, data=data, frozen=frozen, remote=remote)
    return _train(experiment, opened, on_round, start or start_engine)


def _train(
    experiment: Experiment,
    folder: RunFolder | None,
    on_round: Callable[[Record], None],
    start: Callable[[Experiment], Engine],
) -> Result:
    """The round loop."""
    algorithm, config = experiment.algorithm, experiment.config
    identity = experiment.identity()
    state = algorithm.init()
    records: list[Record] = []
    if folder is not None:
        state = folder.load_state(state, identity)
        records = folder.records()
    ledger = Ledger(config, (record["clients"] for record in records))
    on_round = observed(on_round, experiment, folder.path if folder else None, state.round)
    engine = start(experiment)
    try:
        while state.round < config.rounds and ledger.affords(participants(config, state.round + 1)):
            state, record = _round(experiment, engine, state)
            record |= ledger.charge(record["clients"])
            records.append(record)
            if folder is not None:
                folder.append(record)
                folder.save_state(state, identity)
            on_round(record)
    finally:
        engine.close()
    result = _finish(experiment, state, records, ledger.statement())
    if folder is not None:
        folder.finish(result.summary, result.file.name, result.file.to_bytes())
    return result


def _round(experiment: Experiment, engine: Engine, state: Any) -> tuple[Any, Record]:
    """One round: sample clients, broadcast, train, aggregate, evaluate."""
    started = time.perf_counter()
    algorithm, config = experiment.algorithm, experiment.config
    number = state.round + 1
    chosen = participants(config, number)
    tasks, ideal_bits = _tasks(algorithm, state, chosen)
    exchange = Exchange(chosen, sum(len(task.broadcast) for task in tasks), ideal_bits, quorum=config.quorum)
    replies = engine.run(number, tasks)
    state = algorithm.aggregate(state, exchange.accepted(algorithm, state, replies))
    record = {"round": number, **_scores(experiment, state), **exchange.figures(algorithm.masked.size)}
    record |= of_theta(algorithm, state)
    return state, {**record, "seconds": round(time.perf_counter() - started, 3)}


def _tasks(algorithm: Algorithm[Any, Any], state: Any, chosen: list[int]) -> tuple[list[Task], float]:
    """Return each client's broadcast, one that builds on what it holds if it can, and the ideal bits of them all."""
    held = algorithm.holders(state)
    since = [held.get(client) for client in chosen]
    forms = {round: algorithm.broadcast(state, since=round) for round in set(since)}
    memory = algorithm.memory(state)
    tasks = [Task(c, forms[s].payload, memory if s else b"") for c, s in zip(chosen, since, strict=True)]
    return tasks, sum(forms[s].ideal_bits for s in since)


def _scores(experiment: Experiment, state: Any) -> Record:
    """Score every mode on validation data, and on test data only the mode chosen there."""
    algorithm = experiment.algorithm
    device = torch.device(experiment.config.device)
    with threads(experiment.config.local.threads):
        found = {m: evaluate(algorithm.network(state, m), experiment.validation, device) for m in algorithm.modes}
        best = max(algorithm.final_modes, key=lambda mode: found[mode].rank)
        test = evaluate(algorithm.network(state, best), experiment.dataset.test, device)
    return {
        "accuracy": test.accuracy,
        "loss": finite(test.loss),
        "mode": best,
        "validation_accuracy": {mode: score.accuracy for mode, score in found.items()},
    }


def _finish(experiment: Experiment, state: Any, records: list[Record], privacy: Record) -> Result:
    """Make the final model and sum the run up; ``privacy`` is what the run guarantees, if anything."""
    algorithm, config, last = experiment.algorithm, experiment.config, records[-1]
    file = _model_file(experiment, state, last, privacy)
    size = len(file.to_bytes())
    summary = {
        **{key: last[key] for key in ("accuracy", "loss", "mode", "validation_accuracy")},
        "algorithm": config.algorithm,
        "rounds": len(records),
        "parameters": algorithm.masked.size,
        "uplink_bytes": sum(record["uplink_bytes"] for record in records),
        "downlink_bytes": sum(record["downlink_bytes"] for record in records),
        "uplink_bpp": sum(record["uplink_bpp"] for record in records) / len(records),
        "downlink_bpp": sum(record["downlink_bpp"] for record in records) / len(records),
        "layers": layers(algorithm.masked, algorithm.mask(state, last["mode"])),
        "model_bytes": size,
        "model_bpp": 8 * size / algorithm.masked.size,
        "seconds": round(sum(record["seconds"] for record in records), 3),
        **privacy,
        "versions": versions(),
    }
    return Result(file.module(algorithm.masked.net if config.model.name == OWN else None), file, summary, records)


def _model_file(experiment: Experiment, state: Any, last: Record, privacy: Record) -> Model | Weights:
    """Return the final model as it is shipped."""
    algorithm, config, dataset = experiment.algorithm, experiment.config, experiment.dataset
    provenance = {
        "config": settings_of(config, _NO_PROVENANCE),
        "data": dataset.name,
        "fedpm": version("fedpm"),
        **{key: last[key] for key in ("round", "mode", "accuracy", "validation_accuracy")},
        **privacy,
    }
    mask = algorithm.mask(state, last["mode"])
    if mask is None:
        return Weights(algorithm.network(state, last["mode"]), provenance)
    return Model.make(
        algorithm.masked,
        mask.astype(np.uint8),
        state.stats,
        seed=config.seed,
        network=None if config.model.name == OWN else config.model.name,
        input_shape=dataset.input_shape,
        input_dtype="int64" if dataset.train.x.dtype == np.int64 else "float32",
        classes=dataset.classes,
        preprocessing=dataset.preprocessing,
        provenance=provenance,
    )
