"""The method of a run, put together from its parts: trainer, coder, aggregation rule."""

from collections.abc import Sequence
from typing import Any

import torch

from fedpm.aggregation.base import masks_only
from fedpm.config import Config
from fedpm.data.datasets import Dataset, Shard
from fedpm.data.participation import Participation
from fedpm.data.partition import Indices
from fedpm.errors import ConfigError, require
from fedpm.methods.base import Ingredients, Method
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.budget import Guarantee
from fedpm.registry import AGGREGATORS, CODERS, METHODS
from fedpm.training.device import choose_precision
from fedpm.training.local import Local
from fedpm.training.task import Task
from fedpm.wire.coders.base import Coding


def pace(config: Config, parts: Sequence[Indices]) -> tuple[float, int] | None:
    """Return the rate of scores that was set, and the most steps that a client takes with it in a round."""
    most = max(map(len, parts), default=0)
    if config.local.lr == "auto" or not METHODS[config.algorithm].masks or not most:
        return None
    return config.local.lr, config.local.epochs * -(-most // config.local.batch_size)


def method_of(
    config: Config,
    network: MaskedNetwork,
    guarantee: Guarantee | None,
    participation: Participation,
    task: Task,
    dataset: Dataset,
    held_out: Shard,
) -> Method[Any, Any]:
    """Return what clients and server do, as the configuration says."""
    spec, aggregator, tables = METHODS[config.algorithm], AGGREGATORS[config.aggregator], config.tables()
    coder = CODERS[config.codec] if spec.masks else None
    device = torch.device(config.device)
    rule = aggregator.build(tables.get(aggregator.table))
    if masks_only(rule) and not spec.masks:
        raise ConfigError(
            f"aggregator = {config.aggregator!r} folds masks, and algorithm = {config.algorithm!r} sends none: "
            "use 'mean'"
        )
    method: Method[Any, Any] = spec.build(
        Ingredients(
            network=network,
            seed=config.seed,
            local=Local(
                epochs=config.local.epochs,
                batch_size=config.local.batch_size,
                lr=None if config.local.lr == "auto" else config.local.lr,
                lr_decay=float(config.local.lr_decay),
                lr_fade=float(config.local.lr_fade),
                lr_warmup=config.local.lr_warmup,
                beta1=None if config.local.adam_beta1 == "auto" else config.local.adam_beta1,
                epsilon=float(config.local.adam_epsilon),
                whiten=bool(config.local.whiten),
                float_lr=config.local.float_lr,
                gradient=config.local.gradient,
                task=task,
                lookahead=float(config.local.lookahead),
                logit_adjustment=config.local.logit_adjustment,
                device=device,
                precision=choose_precision(config.precision, device),
            ),
            aggregator=rule,
            coding=None if coder is None else Coding.of(coder, coder.build(tables.get(coder.table))),
            private=None if guarantee is None else guarantee.private,
            per_round=config.clients.per_round,
            clients=config.clients.total,
            example=dataset.test.x[:1],
            held_out=held_out if config.evaluation.at == "server" and len(held_out) else None,
            average=float(config.average),
            tables=tables,
        )
    )
    if coder is not None and coder.secure:
        if config.subtotals:
            raise ConfigError(
                f"subtotals = true: with codec = {coder.name!r} there are no uploads to add up; use false"
            )
        require("secure", f"codec = {coder.name!r}", "cryptography")
        from fedpm.methods.mask.secured import secured

        return secured(method, participation)
    if config.subtotals:
        from fedpm.methods.mask.sums import summed

        return summed(method)
    return method
