"""An experiment, built from its configuration. Below this module nobody knows of configuration."""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpm.config import Config
from fedpm.config.sections import DataConfig
from fedpm.config.tuned import resolved
from fedpm.data.datasets import Dataset, Shard, folder, load_dataset, to_input
from fedpm.data.partition import Indices, split
from fedpm.engines.base import Clients, Engine, Limits
from fedpm.engines.inprocess import Sequential, Workers
from fedpm.errors import ConfigError
from fedpm.experiment.methods import build_algorithm
from fedpm.methods.base import Algorithm
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.budget import check_private, settled
from fedpm.rng import Streams
from fedpm.training.local import Local, choose_device, choose_precision

OWN = "own"


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs, built from a configuration."""

    config: Config
    algorithm: Algorithm[Any, Any]
    clients: Clients
    validation: Shard
    dataset: Dataset
    frozen: tuple[str, ...]

    def identity(self) -> str:
        """Tell this network and this data from others."""
        digest = hashlib.blake2b(digest_size=8)
        for shard in (self.clients.train, self.validation, self.dataset.test):
            digest.update(np.ascontiguousarray(shard.x).data)
            digest.update(shard.y.data)
        return f"{self.algorithm.masked.fingerprint(self.config.seed):016x}-{digest.hexdigest()}"


def build(
    config: Config,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Collection[str] = (),
    remote: bool = False,
) -> Experiment:
    """Make an experiment; a network or data of your own replace those that the configuration names.

    If ``remote``, the data are what one place holds, and are not split: all training examples are those of the
    client that runs here, or those that a server chooses on.
    """
    config = _resolved(config, net, data)
    device = torch.device(config.device)
    dataset = (data or _load(config.data)).limited(config.data.train_examples, config.seed, config.data.test_examples)
    held = dataset.train, dataset.train
    train, validation = held if remote else dataset.holding_out(config.data.validation, config.seed)
    if net is None:
        net = nets.build(config.model.name, dataset.input_shape, len(dataset.classes))
    local = Local(
        epochs=config.local.epochs,
        batch_size=config.local.batch_size,
        lr=float(config.local.lr),
        gradient=config.local.gradient,
        device=device,
        precision=choose_precision(config.precision, device),
    )
    masked = MaskedNetwork(net, init=config.model.init, frozen=frozen)
    _check_fit(masked, dataset)
    algorithm = build_algorithm(config, masked, local)
    parts = [np.arange(len(train))] * config.clients.total if remote else _parts(config, train)
    check_private(config, masked, train, [len(part) for part in parts])
    clients = Clients(algorithm, train, parts, Streams(config.seed), config.local.threads)
    return Experiment(config, algorithm, clients, validation, dataset, tuple(frozen))


def _parts(config: Config, train: Shard) -> list[Indices]:
    return split(
        train.y,
        config.clients.total,
        config.seed,
        config.data.split,
        classes_per_client=config.data.classes_per_client,
        alpha=config.data.alpha,
    )


def _load(data: DataConfig) -> Dataset:
    return load_dataset(data.name, data.dir) if data.path is None else folder(data.path)


def _placed(data: DataConfig) -> DataConfig:
    """Make paths absolute, so that a run can be resumed from anywhere."""
    places = {key: getattr(data, key) for key in ("dir", "path")}
    return data.model_copy(
        update={key: str(Path(place).expanduser().resolve()) for key, place in places.items() if place}
    )


def _resolved(config: Config, net: nn.Module | None, data: Dataset | None) -> Config:
    """Settle what depends on machine and caller, so that the written configuration is complete."""
    faults = []
    for section, given in (("data", data), ("model", net)):
        if given is None and getattr(config, section).name == OWN:
            faults.append(f"{section}.name = 'own': comes through the Python API only; see fedpm.run and fedpm.resume")
    if faults:
        raise ConfigError("\n".join(faults))
    device = choose_device(config.device)
    wanted = config.precision if config.privacy.unit == "none" else "float32"
    precision = str(choose_precision(wanted, device)).removeprefix("torch.")
    update: dict[str, Any] = {"device": str(device), "precision": precision}
    update["data"] = _placed(config.data) if data is None else config.data.model_copy(update={"name": OWN})
    if net is not None:
        update["model"] = config.model.model_copy(update={"name": OWN})
    return settled(resolved(config.model_copy(update=update)))


def _check_fit(masked: MaskedNetwork, dataset: Dataset) -> None:
    """Refuse a network that cannot take the inputs or has too few outputs, before any work is done."""
    module = masked.module(masked.weights(0), masked.initial_stats())
    try:
        with torch.inference_mode():
            shape = tuple(module(to_input(dataset.test.x[:1], torch.device("cpu"))).shape)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the network cannot take inputs of shape {dataset.input_shape}: {reason}") from None
    if len(shape) != 2 or shape[1] < len(dataset.classes):
        raise ConfigError(
            f"the network gives an output of shape {shape} for one input; it should be (1, {len(dataset.classes)}): "
            f"a score for each class of {dataset.name}"
        )


def limits_of(config: Config) -> Limits:
    """Return what a server on Flower waits for."""
    return Limits(config.quorum, config.flower.deadline, config.flower.patience)


def start_engine(experiment: Experiment) -> Engine:
    """Start what runs the clients."""
    config = experiment.config
    if config.workers != "auto":
        count = config.workers
    elif OWN in (config.data.name, config.model.name) or torch.device(config.device).type != "cpu":
        count = 1  # classes of a notebook cannot move to other processes; one process fills an accelerator
    else:
        count = max(1, cores() // config.local.threads)
    count = min(count, config.clients.per_round)
    if config.engine == "flower":
        from fedpm.engines.flower.simulation import Simulation

        return Simulation(experiment.clients, config.clients.total, count, limits_of(config))
    return Sequential(experiment.clients) if count == 1 else Workers(experiment.clients, count)


def cores() -> int:
    """Return how many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1
