"""What all tests share. Torch is imported by fixtures alone: the process that hands out tests to others needs none."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import fedpm
from tests.studied import studied

if TYPE_CHECKING:
    from fedpm.data.datasets import Dataset

__all__ = ["studied"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background: programs under test would not hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("suite", deadline=None)  # a busy machine is no fault
settings.load_profile("suite")


FLEETS = ("test_fleet.py", "test_cluster.py", "test_simulation.py")
"""What starts many processes and waits for them: one after another, beside what computes all the time."""
LONGEST = (*FLEETS, "test_docs.py", "test_pages.py", "test_engines.py", "test_runner.py")


@pytest.hookimpl(optionalhook=True)  # there is none without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give whole files to one process, so that what they train is trained once, and all fleets to the same one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "fleets" if file.endswith(FLEETS) else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that processes which share the suite by files end together."""
    order, ranks = {"flower": 0, "slow": 1}, {name: rank for rank, name in enumerate(LONGEST)}
    first: dict[Path, tuple[int, int]] = {}
    for item in items:
        rank = ranks.get(item.path.name, len(LONGEST))
        marks = [(rank, order.get(mark.name, 2)) for mark in item.iter_markers()]
        first[item.path] = min([first.get(item.path, (rank, 2)), *marks])
    items.sort(key=lambda item: first[item.path])


@pytest.fixture(scope="session", autouse=True)
def one_core() -> None:
    """Each process of the suite has one core, and what is trained here is too small to share."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> Dataset:
    from fedpm.data.datasets import digits

    return digits()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> tuple[Path, fedpm.Result]:
    from tests.small import small_config, small_net

    out = tmp_path_factory.mktemp("small") / "run"
    return out, fedpm.run(small_config(), net=small_net(), data=data, out=out)
