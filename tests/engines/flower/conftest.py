"""One experiment, small enough to be trained again and again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpm.data.datasets import digits


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """3 rounds, 2 clients, the digits as a folder of arrays, which loads faster."""
    folder, data = tmp_path_factory.mktemp("data"), digits()
    arrays = {"train_x": data.train.x, "train_y": data.train.y, "test_x": data.test.x, "test_y": data.test.y}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[:240])
    return ["rounds=3", "clients.total=2", "local.epochs=1", "data.name=folder", f'data.path="{folder}"']


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run folder."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def timeless(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rounds without what differs from run to run."""
    return [{**record, "seconds": 0} for record in rounds]
