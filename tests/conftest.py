"""A federation small enough for a test: a linear network with one hidden layer on 300 of the digits."""

from pathlib import Path

import pytest
from torch import nn

import fedpm
from fedpm.config import Config, parse
from fedpm.data.datasets import Dataset, digits
from tests.studied import studied

__all__ = ["studied"]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def small_config(**settings: object) -> Config:
    base = {"rounds": 3, "workers": 1, "clients": {"total": 4}, "local": {"epochs": 2}, "data": {"train_examples": 300}}
    return parse({**base, **settings})


@pytest.fixture(scope="session")
def data() -> Dataset:
    return digits()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> tuple[Path, fedpm.Result]:
    out = tmp_path_factory.mktemp("small") / "run"
    return out, fedpm.run(small_config(), net=small_net(), data=data, out=out)
