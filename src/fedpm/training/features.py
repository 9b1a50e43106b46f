"""What frozen lower layers make of the inputs, computed once: training and scoring go on from there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedpm.data.datasets import Array, Shard, to_input
from fedpm.data.lazy import Lazy
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.model.still import leading
from fedpm.training.device import threads

BATCH = 100


@dataclass(frozen=True)
class Features(Lazy):
    """Inputs that have passed the first ``skip`` children of a network; ``source`` are the inputs themselves."""

    values: Array
    skip: int
    source: Any

    def __getitem__(self, key: Any) -> Any:
        """Return those of a number, a slice or an array of numbers."""
        return self.values[self.numbers[key]]


def skipped(shard: Shard) -> int:
    """Return how many children of a network the inputs of a shard have passed."""
    return shard.x.skip if isinstance(shard.x, Features) else 0


def cached(shards: Sequence[Shard], network: MaskedNetwork, thread_count: int) -> list[Shard]:
    """Return examples with what the children ahead of everything masked or trained make of them."""
    skip = leading(network.net, network.aliases)
    if network.given is None or not skip:
        raise ConfigError(
            "local.cache = true: there is nothing to run once; the network should be an nn.Sequential whose first "
            "children are frozen, with model.weights = 'given' (docs/pretrained.md)"
        )
    lower = torch.nn.Sequential(*list(network.net.children())[:skip]).eval()
    found = []
    with threads(thread_count), torch.inference_mode():
        for shard in shards:
            starts = range(0, len(shard), BATCH)
            inputs = (to_input(shard.x[start : start + BATCH], torch.device("cpu")) for start in starts)
            values = np.concatenate([lower(x).contiguous().numpy() for x in inputs])
            where = np.arange(len(shard)), values.shape[1:], values.dtype
            found.append(replace(shard, x=Features(values.__getitem__, *where, values, skip, shard.x)))
    return found
