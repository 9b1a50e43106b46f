"""Where clients' randomness comes from: the seed, which the server knows too, or the operating system."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpm
from fedpm.config import load, settings_of
from fedpm.data.datasets import Dataset
from fedpm.experiment.build import build
from fedpm.model.file import Model
from tests.privacy.attack import explained
from tests.small import small_config, small_net

SECRET = {"secret": True}


@pytest.mark.parametrize("codec", ["frequency", "side-information"])
def test_who_knows_the_seed_explains_every_bit_unless_clients_draw_in_secret(data: Dataset, codec: str) -> None:
    repeatable, secret = (
        explained(
            build(small_config(codec=codec, privacy=privacy, model={"init": "kaiming"}), net=small_net(), data=data)
        )
        for privacy in ({}, SECRET)  # from a start of θ between 0 and 1, where chance decides
    )
    assert repeatable[0] == 1
    share, chance = secret
    parameters = 2410
    assert abs(share - chance) < 5 * np.sqrt(0.25 / parameters), "no more than luck explains"
    assert share < 0.8


def test_shared_randomness_hides_nothing_even_so(data: Dataset) -> None:
    config = small_config(codec="shared-randomness", privacy=SECRET)
    assert explained(build(config, net=small_net(), data=data))[0] == 1


def test_a_simulation_is_repeatable_and_says_so(small_run: tuple[Path, fedpm.Result]) -> None:
    folder, result = small_run
    assert result.summary["repeatable"] is True
    assert isinstance(result.file, Model)
    assert result.file.header.provenance["config"]["privacy"] == {"secret": False}
    assert settings_of(load(folder / "config.toml"))["privacy"] == {"secret": False}


def test_a_secret_run_says_that_nobody_can_repeat_it_and_can_be_resumed(data: Dataset, tmp_path: Path) -> None:
    def cut(record: object) -> None:
        raise InterruptedError

    given: dict[str, Any] = {"net": small_net(), "data": data}
    config = small_config(rounds=2, local={"epochs": 1}, fedpm={"forward": "sampled"}, privacy=SECRET)
    with pytest.raises(InterruptedError):
        fedpm.run(config, out=tmp_path / "run", on_round=cut, **given)
    first = (tmp_path / "run/rounds.jsonl").read_text()
    resumed = fedpm.resume(tmp_path / "run", **given)
    assert [record["round"] for record in resumed.rounds] == [1, 2]
    assert json.loads(first)["accuracy"] == resumed.rounds[0]["accuracy"]
    assert resumed.summary["repeatable"] is False
    assert isinstance(resumed.file, Model)
    assert resumed.file.header.provenance["config"]["privacy"] == {"secret": True}
    assert resumed.file.to_bytes() != fedpm.run(config, **given).file.to_bytes()
