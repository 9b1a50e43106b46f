"""Data as an experiment uses them: loaded, and divided into what clients train with and what the server chooses on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedpm.config import Config
from fedpm.config.sections import DataConfig
from fedpm.data.datasets import Dataset, Shard, load_dataset
from fedpm.data.federation import Federation
from fedpm.data.ondemand import OnDemand
from fedpm.data.partition import Indices, split
from fedpm.data.paths import of_path
from fedpm.errors import ConfigError, DataError
from fedpm.model.masking import MaskedNetwork
from fedpm.training.features import cached


def load(data: DataConfig) -> Dataset:
    """Return the data that the settings name."""
    if data.path is None:
        return load_dataset(data.name, data.dir)
    return of_path(Path(data.path), test=data.test, label=data.label, client=data.client, given=data.split == "given")


@dataclass(frozen=True)
class Division:
    """Whose each example is.

    Args:
        train: what clients train with, of which ``parts`` are the examples of each.
        parts: by number.
        validation: what the server chooses on.
        held: what clients score networks on, ``"validation"`` and perhaps ``"test"``; each with the examples of each.
        load: returns what a client trains with, where nothing of it is here; ``parts`` are none then.
    """

    train: Shard
    parts: list[Indices]
    validation: Shard
    held: dict[str, tuple[Shard, list[Indices]]] = field(default_factory=dict)
    load: Callable[[int], Shard] | None = None


def divided(config: Config, dataset: Dataset, remote: bool) -> Division:
    """Divide a data set as the settings say."""
    everybody, share = config.clients.total, config.data.validation
    if remote:
        train, held = dataset.train, dict[str, tuple[Shard, list[Indices]]]()
        if config.evaluation.held:
            train, validation = dataset.holding_out(share, config.seed)
            held = {"validation": (validation, [np.arange(len(validation))] * everybody)}
        return Division(train, [np.arange(len(train))] * everybody, dataset.train, held)
    if isinstance(dataset, OnDemand):
        if config.evaluation.held:
            raise DataError("evaluation: clients that are loaded on demand hold nothing out; let the server evaluate")
        return Division(dataset.train, [], dataset.train, load=dataset.shard)
    given = isinstance(dataset, Federation) and config.data.split == "given"
    if config.evaluation.held or given:
        federation = dataset if given and isinstance(dataset, Federation) else _federated(config, dataset)
        return _of_federation(config, federation.with_validation(share, config.seed))
    train, validation = dataset.holding_out(share, config.seed)
    return Division(train, _split(config, dataset, train), validation)


def with_features(
    config: Config, network: MaskedNetwork, dataset: Dataset, division: Division
) -> tuple[Dataset, Division]:
    """Return the data as the frozen lower layers pass them on, which run once."""
    if division.held:
        raise ConfigError(
            "local.cache = true: what clients hold out is not cached; set evaluation.at = 'server' and "
            "evaluation.local = false, or local.cache = false"
        )
    shards = [division.train, division.validation, dataset.test]
    train, validation, test = cached(shards, network, config.local.threads)
    return replace(dataset, test=test), replace(division, train=train, validation=validation)


def _of_federation(config: Config, federation: Federation) -> Division:
    if federation.validation is None:
        raise TypeError("a federation without examples to choose on")
    division = Division(federation.train, federation.parts(), federation.validation)
    if not config.evaluation.held:
        return division
    if federation.validation_owner is None:
        raise DataError(
            "evaluation: validation examples are the server's, and clients hold out none; give the federation a share "
            "of each client's (validation=0.1), or use evaluation.at = 'server' and evaluation.local = false"
        )
    owners = {"validation": federation.validation_owner, "test": federation.test_owner}
    shards = {"validation": federation.validation, "test": federation.test}
    clients = range(len(federation.clients))
    held = {
        what: (shards[what], [np.flatnonzero(owner == client) for client in clients])
        for what, owner in owners.items()
        if owner is not None
    }
    return Division(division.train, division.parts, division.validation, held)


def _federated(config: Config, dataset: Dataset) -> Federation:
    """Return a data set with its examples dealt to clients, who can then hold out some of their own."""
    parts = _split(config, dataset, dataset.train)
    owner = np.zeros(len(dataset.train), np.intp)
    for client, part in enumerate(parts):
        owner[part] = client
    about = (dataset.name, dataset.train, dataset.test, dataset.classes, dataset.preprocessing)
    clients = tuple(map(str, range(len(parts))))
    return Federation(*about, clients, owner, columns=dataset.columns, named=dataset.named)


def _split(config: Config, dataset: Dataset, train: Shard) -> list[Indices]:
    if config.data.split != "iid" and not dataset.labelled:
        raise DataError(
            f"data.split = {config.data.split!r}: there is no class an example in {dataset.called} to divide by; use "
            "'iid', or give each client its own (fedpm.federation)"
        )
    return split(
        train.y,
        config.clients.total,
        config.seed,
        config.data.split,
        classes_per_client=config.data.classes_per_client,
        alpha=config.data.alpha,
    )
