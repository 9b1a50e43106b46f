"""An experiment, built from its configuration. Below this module nobody knows of configuration."""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpm.config import Config, flattened, settings_of, to_toml
from fedpm.config.sections import DataConfig
from fedpm.data.datasets import Dataset, Shard, folder, load_dataset, to_input
from fedpm.data.participation import Participation
from fedpm.data.partition import Indices, split
from fedpm.engines.base import Clients, Engine, Start
from fedpm.errors import ConfigError
from fedpm.experiment.folder import Origin
from fedpm.experiment.settle import OWN, guarantee_of, settle
from fedpm.methods.base import Ingredients, Method
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.budget import Guarantee, check_private
from fedpm.registry import AGGREGATORS, CODERS, ENGINES, METHODS
from fedpm.rng import SecretStreams, Streams
from fedpm.training.device import choose_precision
from fedpm.training.local import Local
from fedpm.wire.coders.base import Coding


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything a run needs, built from a configuration.

    Args:
        algorithm: the method's name.
        method: what clients and server do.
        clients: the client side.
        validation: what the server chooses on.
        dataset: the data, of which the server reports on ``test``.
        participation: who takes part in which round.
        rounds: how many there are to be.
        seed: names every random stream.
        device: where the server evaluates.
        network_name: the built-in network; None for one of the user's own.
        guarantee: of differential privacy, if any.
        tensorboard: whether TensorBoard is told of each round.
        engine: the name of the engine, and ``start`` what it is started with.
        provenance: the settings that the result depends on.
        config_toml: all settings, settled, for the run folder.
    """

    algorithm: str
    method: Method[Any, Any]
    clients: Clients
    validation: Shard
    dataset: Dataset
    participation: Participation
    rounds: int
    seed: int
    device: torch.device
    network_name: str | None
    guarantee: Guarantee | None
    tensorboard: bool
    engine: str
    start: Start
    provenance: dict[str, Any]
    config_toml: str

    def origin(self) -> Origin:
        """Tell this network, these data and these settings from others."""
        digest = hashlib.blake2b(digest_size=8)
        for shard in (self.clients.train, self.validation, self.dataset.test):
            digest.update(np.ascontiguousarray(shard.x).data)
            digest.update(shard.y.data)
        identity = f"{self.method.network.fingerprint(self.seed):016x}-{digest.hexdigest()}"
        return Origin(identity, flattened(self.provenance))


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
    config = settle(config, net, data)
    participation = Participation(config.seed, config.clients.total, config.clients.per_round)
    guarantee = guarantee_of(config)
    dataset = (data or _load(config.data)).limited(config.data.train_examples, config.seed, config.data.test_examples)
    everything = dataset.train, dataset.train
    train, validation = everything if remote else dataset.holding_out(config.data.validation, config.seed)
    if net is None:
        net = nets.build(config.model.name, dataset.input_shape, len(dataset.classes))
    network = MaskedNetwork(net, init=config.model.init, frozen=frozen)
    _check_fit(network, dataset)
    parts = [np.arange(len(train))] * config.clients.total if remote else _parts(config, train)
    if guarantee is not None:
        check_private(guarantee, network, train, [len(part) for part in parts])
    method = _method(config, network, guarantee)
    streams = SecretStreams(config.seed) if guarantee is not None and guarantee.secret else Streams(config.seed)
    return Experiment(
        algorithm=config.algorithm,
        method=method,
        clients=Clients(method, train, parts, streams, config.local.threads),
        validation=validation,
        dataset=dataset,
        participation=participation,
        rounds=config.rounds,
        seed=config.seed,
        device=torch.device(config.device),
        network_name=None if config.model.name == OWN else config.model.name,
        guarantee=guarantee,
        tensorboard=config.tensorboard,
        engine=config.engine,
        start=_start(config),
        provenance=settings_of(config, results_only=True),
        config_toml=to_toml(config),
    )


def start_engine(experiment: Experiment) -> Engine:
    """Start what runs the clients."""
    engine: Engine = ENGINES[experiment.engine].build(experiment.clients, experiment.start)
    return engine


def _method(config: Config, network: MaskedNetwork, guarantee: Guarantee | None) -> Method[Any, Any]:
    spec, aggregator, tables = METHODS[config.algorithm], AGGREGATORS[config.aggregator], config.tables()
    coder = CODERS[config.codec] if spec.masks else None
    device = torch.device(config.device)
    method: Method[Any, Any] = spec.build(
        Ingredients(
            network=network,
            seed=config.seed,
            local=Local(
                epochs=config.local.epochs,
                batch_size=config.local.batch_size,
                lr=float(config.local.lr),
                lr_decay=float(config.local.lr_decay),
                gradient=config.local.gradient,
                device=device,
                precision=choose_precision(config.precision, device),
            ),
            aggregator=aggregator.build(tables.get(aggregator.table)),
            coding=None if coder is None else Coding.of(coder, coder.build(tables.get(coder.table))),
            private=None if guarantee is None else guarantee.private,
            per_round=config.clients.per_round,
            clients=config.clients.total,
            tables=tables,
        )
    )
    return method


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


def _start(config: Config) -> Start:
    if config.workers != "auto":
        workers = config.workers
    elif OWN in (config.data.name, config.model.name) or torch.device(config.device).type != "cpu":
        workers = 1  # classes of a notebook cannot move to other processes; one process fills an accelerator
    else:
        workers = max(1, cores() // config.local.threads)
    per_round = config.clients.per_round
    settings = config.tables().get(ENGINES[config.engine].table)
    return Start(clients=config.clients.total, per_round=per_round, workers=min(workers, per_round), settings=settings)


def cores() -> int:
    """Return how many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _check_fit(network: MaskedNetwork, dataset: Dataset) -> None:
    """Refuse a network that cannot take the inputs or has too few outputs, before any work is done."""
    module = network.module(network.weights(0), network.initial_stats())
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
