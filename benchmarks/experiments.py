"""Experiments of known size, on noise: what is measured depends on shapes alone."""

from typing import Any, cast

import numpy as np

from fedpm.config import parse
from fedpm.data.datasets import Dataset, dataset
from fedpm.experiment.build import Experiment, build
from fedpm.methods.mask.fedpm import FedPM
from fedpm.rng import Streams

NETWORKS: dict[str, tuple[str, tuple[int, int, int], int]] = {
    "CONV-4, 8×8": ("conv4", (1, 8, 8), 65),
    "CONV-4, 28×28": ("conv4", (1, 28, 28), 128),
    "CONV-6, 32×32": ("conv6", (3, 32, 32), 128),
}
"""Networks that are measured: name, input, and examples in a minibatch."""
LARGE = {"CONV-10, 32×32": ("conv10", (3, 32, 32), 128), "ResNet-18, 32×32": ("resnet18", (3, 32, 32), 128)}
"""The paper's large ones, of which only the memory is measured."""


def noise_images(shape: tuple[int, int, int], examples: int) -> Dataset:
    """Return images of noise in ten classes."""
    size = int(np.prod(shape))
    draws = Streams(1).uint8("images", (examples + 20) * size).reshape(-1, *shape)
    labels = np.arange(examples + 20) % 10
    return dataset((draws[:examples], labels[:examples]), (draws[examples:], labels[examples:]))


def fedpm_of(experiment: Experiment) -> FedPM:
    """Return the method of an experiment, which is FedPM."""
    return cast(FedPM, experiment.method)


def noise_experiment(network: str, clients: int, steps: int, epochs: int = 1, **settings: Any) -> Experiment:
    """Return an experiment in which each client takes so many steps an epoch."""
    name, shape, batch = (NETWORKS | LARGE)[network]
    train = clients * steps * batch
    validation = max(1, train // 99)
    config = parse(
        {
            "model": {"name": name},
            "clients": {"total": clients},
            "data": {"validation": validation / (train + validation)},
            "local": {"epochs": epochs, "batch_size": batch, **settings.pop("local", {})},
            **settings,
        }
    )
    return build(config, data=noise_images(shape, train + validation))
