"""An experiment, built from its configuration. Below this module nobody knows of configuration."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpm.config import Config, flattened, settings_of, to_toml
from fedpm.data.datasets import Dataset, Shard
from fedpm.data.federation import Federation
from fedpm.data.lazy import Lazy
from fedpm.data.participation import Participation
from fedpm.engines.base import Clients, Engine, Held, Start
from fedpm.errors import ConfigError
from fedpm.experiment.division import Division, divided, load, with_features
from fedpm.experiment.fitting import check_batches, check_fit, check_private_loss, check_suits, check_tokens
from fedpm.experiment.loggers import LOGGERS
from fedpm.experiment.origin import Origin
from fedpm.experiment.parts import method_of, pace
from fedpm.experiment.settle import OWN, check_given, guarantee_of, peopled, settle
from fedpm.experiment.warned import warn
from fedpm.methods.base import Method
from fedpm.model.kinds import Selectors, several
from fedpm.model.masking import MaskedNetwork
from fedpm.model.pretrained import named
from fedpm.privacy.budget import Guarantee, check_private
from fedpm.registry import ENGINES
from fedpm.rng import SecretStreams, Streams
from fedpm.training.features import Features
from fedpm.training.losses import NUMBERS, Loss
from fedpm.training.task import OWN as OWN_FUNCTION
from fedpm.training.task import Task, task_of


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything a run needs, built from a configuration.

    Args:
        algorithm: the method's name.
        method: what clients and server do.
        clients: the client side.
        validation: what the server chooses on.
        dataset: the data, of which the server reports on ``test``.
        task: what is learned.
        scored_at: who scores networks on held-out examples of clients, the ``"server"`` or the ``"clients"``.
        participation: who takes part in which round.
        rounds: how many there are to be.
        seed: names every random stream.
        device: where the server evaluates.
        network_name: the built-in network; None for one of the user's own.
        guarantee: of differential privacy, if any.
        keep: which round's model is shipped, the ``"last"`` or the ``"best"`` on validation data.
        patience: rounds without a better score there after which training ends; None: it does not.
        loggers: who is told of each round beside the caller.
        engine: the name of the engine, and ``start`` what it is started with.
        decoders: the processes in which the server decodes uploads.
        provenance: the settings that the result depends on.
        config_toml: all settings, settled, for the run folder.
    """

    algorithm: str
    method: Method[Any, Any]
    clients: Clients
    validation: Shard
    dataset: Dataset
    task: Task
    scored_at: str
    participation: Participation
    rounds: int
    seed: int
    device: torch.device
    network_name: str | None
    guarantee: Guarantee | None
    keep: str
    patience: int | None
    loggers: tuple[str, ...]
    engine: str
    start: Start
    decoders: int
    provenance: dict[str, Any]
    config_toml: str

    def origin(self) -> Origin:
        """Tell this network, these data and these settings from others."""
        digest = hashlib.blake2b(digest_size=8)
        for shard in (self.clients.train, self.validation, self.dataset.test):
            x = shard.x.source if isinstance(shard.x, Features) else shard.x
            if not isinstance(x, Lazy):  # of what may be larger than memory the labels have to do
                digest.update(np.ascontiguousarray(x).data)
            digest.update(np.ascontiguousarray(shard.y).data)
        digest.update("\n".join(self.clients.names).encode())
        identity = f"{self.method.network.fingerprint(self.seed):016x}-{digest.hexdigest()}"
        return Origin(identity, flattened(self.provenance))


def build(
    config: Config,
    *,
    net: nn.Module | None = None,
    data: Dataset | None = None,
    frozen: Selectors = (),
    trained: Selectors = (),
    masked: Selectors = (),
    loss: str | Loss | None = None,
    metrics: Sequence[Any] | None = None,
    remote: bool = False,
    columns: Sequence[str] = (),
) -> Experiment:
    """Make an experiment; a network, data, loss or metrics of your own replace those that the configuration names.

    If ``remote``, the data are what one place holds, and are not split: all training examples are those of the
    client that runs here, or those that a server chooses on. A table is ordered by ``columns``, those of the server.
    """
    check_given(config, net, data)
    dataset = (data or load(config.data)).ordered(columns, "the server")
    wanted = metrics or ([] if config.task.metrics == "auto" else config.task.metrics)
    task, called, judged = task_of(loss or config.task.loss, wanted, labelled=dataset.labelled, labels=dataset.train.y)
    dataset = dataset.as_numbers() if called in NUMBERS else dataset
    config = settle(peopled(config, dataset, own=data is not None, remote=remote), net, data, (called, judged))
    participation = Participation(config.seed, config.clients.total, config.clients.per_round)
    guarantee = guarantee_of(config)
    dataset = dataset.limited(config.data.train_examples, config.seed, config.data.test_examples)
    division = divided(config, dataset, remote)
    check_suits(task, called, dataset, logit_adjustment=config.local.logit_adjustment)
    network = _network(config, dataset, net, frozen, trained, masked)
    _check_network(network, config, dataset, division, guarantee, task, called)
    if not remote:
        warn(network, task, dataset, division, net, pace(config, division.parts))
    if config.local.cache:
        dataset, division = with_features(config, network, dataset, division)
    method = method_of(config, network, guarantee, participation, task, dataset, division.validation)
    return Experiment(
        algorithm=config.algorithm,
        method=method,
        clients=_clients(config, method, dataset, division, task),
        validation=division.validation,
        scored_at=config.evaluation.at,
        dataset=dataset,
        task=task,
        participation=participation,
        rounds=config.rounds,
        seed=config.seed,
        device=torch.device(config.device),
        network_name=None if config.model.name == OWN else config.model.name,
        guarantee=guarantee,
        keep=config.keep,
        patience=config.stop.patience,
        loggers=tuple(name for name in LOGGERS if getattr(config, name)),
        engine=config.engine,
        start=_start(config),
        decoders=config.decoders,
        provenance=settings_of(config, results_only=True),
        config_toml=to_toml(config),
    )


def _network(
    config: Config,
    dataset: Dataset,
    net: nn.Module | None,
    frozen: Selectors,
    trained: Selectors,
    masked: Selectors,
) -> MaskedNetwork:
    """Return the caller's network, or the one that the configuration names, under a mask."""
    if net is None and not dataset.classes:
        raise ConfigError(f"model.name = {config.model.name!r}: has an output a class, and labels are none; give net=…")
    if net is None:
        known = named(config.model.name, dataset.input_shape, len(dataset.classes), config.data.dir)
        net, frozen, trained = known.net, (*several(frozen), *known.frozen), (*several(trained), *known.trained)
    start = config.model.model_dump(include={"init", "weights", "keep", "affine"})
    return MaskedNetwork(net, **start, frozen=frozen, trained=trained, masked=masked)


def _check_network(
    network: MaskedNetwork,
    config: Config,
    dataset: Dataset,
    division: Division,
    guarantee: Guarantee | None,
    task: Task,
    called: str,
) -> None:
    """Refuse a network that does not fit what it is to be trained on, and how."""
    check_fit(network, task, called, dataset)
    if division.load is not None and (guarantee is not None or config.local.cache):
        raise ConfigError(
            "clients are loaded on demand: how many examples each has is not known, and nothing of theirs is kept; use "
            "privacy.unit = 'none' and local.cache = false"
        )
    check_tokens(network, dataset.test, division, names := _names(config, dataset))
    check_batches(network, dataset, division.parts, config.local.batch_size, names)
    if guarantee is not None:
        check_private_loss(network, task, called, dataset)
        check_private(guarantee, network, division.train, [len(part) for part in division.parts])


def _clients(config: Config, method: Method[Any, Any], dataset: Dataset, division: Division, task: Task) -> Clients:
    """Return the client side."""
    streams = (SecretStreams if config.privacy.secret is True else Streams)(config.seed)
    held = Held(division.held, task, config.evaluation.local) if division.held else None
    names = _names(config, dataset)
    return Clients(method, division.train, division.parts, streams, config.local.threads, names, held, division.load)


def _names(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """Return what clients are called, nothing if they have numbers alone."""
    return dataset.clients if isinstance(dataset, Federation) and config.data.split == "given" else ()


def start_engine(experiment: Experiment) -> Engine:
    """Start what runs the clients."""
    engine: Engine = ENGINES[experiment.engine].build(experiment.clients, experiment.start)
    return engine


def _start(config: Config) -> Start:
    if config.workers != "auto":
        workers = config.workers
    elif _own(config) or torch.device(config.device).type != "cpu":
        workers = 1  # classes of a notebook cannot move to other processes; one process fills an accelerator
    else:
        workers = max(1, cores() // config.local.threads)
    per_round = config.clients.per_round
    settings = config.tables().get(ENGINES[config.engine].table)
    return Start(
        clients=config.clients.total,
        per_round=per_round,
        rounds=config.rounds,
        workers=min(workers, per_round),
        at_leisure=config.workers == "auto",
        settings=settings,
    )


def _own(config: Config) -> bool:
    """Return whether network, data or loss came through the Python API."""
    return OWN in (config.data.name, config.model.name) or config.task.loss.startswith(OWN_FUNCTION)


def cores() -> int:
    """Return how many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1
