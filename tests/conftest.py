"""A federation small enough for a test: a linear network with one hidden layer on 300 of the digits."""

import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import nn

import fedpm
from fedpm.config import Config, parse
from fedpm.data.datasets import Dataset, digits
from tests.studied import studied

__all__ = ["studied"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background: programs under test would not hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # what is trained here is too small to share, and each process of the suite has one core
settings.register_profile("suite", deadline=None)  # a busy machine is no fault
settings.load_profile("suite")


LONGEST = (
    "test_fleet.py", "test_cluster.py", "test_simulation.py", "test_pages.py", "test_docs.py", "test_engines.py",
    "test_runner.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that processes which share the suite by files end together."""
    order = {"flower": 0, "slow": 1}
    first: dict[Path, tuple[bool, int]] = {}
    for item in items:
        marks = [(item.path.name not in LONGEST, order.get(mark.name, 2)) for mark in item.iter_markers()]
        first[item.path] = min([first.get(item.path, (True, 2)), *marks])
    items.sort(key=lambda item: first[item.path])


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
