"""Private runs from end to end: budget, refusals, what is written."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.config import load, settings_of
from fedpm.data.datasets import Dataset
from fedpm.data.participation import Participation
from fedpm.errors import ConfigError
from fedpm.experiment.build import build
from fedpm.experiment.settle import guarantee_of, settle
from fedpm.model.file import Model
from fedpm.privacy.accounting import Cost, clip_for, noise_for
from tests.small import small_config, small_net

EXAMPLE = {"unit": "example", "epsilon": 8.0}

pytestmark = pytest.mark.slow


def run(data: Dataset, **settings: object) -> fedpm.Result:
    return fedpm.run(small_config(**settings), net=small_net(), data=data)


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> tuple[Path, fedpm.Result]:
    out = tmp_path_factory.mktemp("private") / "run"
    return out, fedpm.run(small_config(privacy=EXAMPLE), net=small_net(), data=data, out=out)


def test_automatic_noise_spends_the_budget_in_the_last_round(private_run: tuple[Path, fedpm.Result]) -> None:
    _, result = private_run
    spent = [record["epsilon"] for record in result.rounds]
    assert len(spent) == 3
    assert spent == sorted(spent)
    assert 7.9 < spent[-1] <= 8


def test_summary_and_model_file_state_the_guarantee(private_run: tuple[Path, fedpm.Result]) -> None:
    folder, result = private_run
    stated = result.summary["privacy"]
    assert stated["epsilon"] == result.rounds[-1]["epsilon"]
    assert stated == Model.open(folder / "model.fedpm").header.provenance["privacy"]
    assert (stated["unit"], stated["delta"], stated["budget"]) == ("example", 1e-5, 8.0)
    assert "one example of one client" in stated["adjacency"]
    assert load(folder / "config.toml").privacy.noise != "auto"


def test_nothing_measured_on_the_examples_leaves_a_private_client(private_run: tuple[Path, fedpm.Result]) -> None:
    assert "train_loss" not in private_run[1].rounds[0]
    assert "uplink_kl_bpp" in private_run[1].rounds[0], "the trained mask is private itself, and so is what follows"


def test_what_is_shipped_is_calibrated_as_without_privacy(private_run: tuple[Path, fedpm.Result]) -> None:
    assert private_run[1].summary["mode"] == "calibrated", "on inputs of the server's, which are not protected"


def test_a_private_run_repeats(private_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    assert run(data, privacy=EXAMPLE).file.to_bytes() == private_run[1].file.to_bytes()


def test_training_stops_before_the_budget_is_exceeded(data: Dataset) -> None:
    result = run(data, rounds=9, privacy={**EXAMPLE, "noise": 2.0})
    cost = Cost("example", 1e-5, steps=2, noise=2.0)
    rounds = len(result.rounds)
    assert 1 < rounds < 9
    assert result.summary["rounds"] == rounds
    assert cost.epsilon(rounds) <= 8 < cost.epsilon(rounds + 1)
    assert result.summary["privacy"]["epsilon"] == cost.epsilon(rounds)


def test_a_resumed_run_remembers_what_was_spent(data: Dataset, tmp_path: Path) -> None:
    settings = small_config(rounds=9, privacy={**EXAMPLE, "noise": 2.0})

    def stop(round: fedpm.Round) -> None:
        if round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedpm.run(settings, net=small_net(), data=data, out=tmp_path / "run", on_round=stop)
    resumed = fedpm.resume(tmp_path / "run", net=small_net(), data=data)
    straight = fedpm.run(settings, net=small_net(), data=data)
    assert resumed.file.to_bytes() == straight.file.to_bytes()
    assert [r["epsilon"] for r in resumed.rounds] == [r["epsilon"] for r in straight.rounds]


def test_a_private_run_goes_on_no_longer_than_its_budget(
    private_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    out = shutil.copytree(private_run[0], tmp_path / "run")
    longer = fedpm.resume(out, rounds=9, net=small_net(), data=data)  # the noise is that of three rounds
    assert (longer.summary["ended"], longer.summary["rounds"]) == ("budget", 3)
    assert longer.summary["privacy"] == private_run[1].summary["privacy"]


def test_only_rounds_that_a_client_takes_part_in_count_and_the_worst_client_decides(data: Dataset) -> None:
    half = {"total": 4, "sampled": 2}
    result = run(data, rounds=4, clients=half, privacy=EXAMPLE)
    guarantee = guarantee_of(small_config(rounds=4, clients=half, privacy=EXAMPLE))
    assert guarantee is not None
    seen: Counter[int] = Counter()
    for record in result.rounds:
        seen.update(record["clients"])
        assert record["epsilon"] == guarantee.cost.epsilon(max(seen.values()))
    assert Participation(0, 4, 2).most(4) == max(seen.values())
    assert 7.9 < result.rounds[-1]["epsilon"] <= 8


def test_a_client_as_unit(data: Dataset) -> None:
    result = run(data, privacy={"unit": "client", "epsilon": 8.0})
    assert 7.9 < result.rounds[-1]["epsilon"] <= 8
    assert not {"train_loss", "uplink_kl_bpp"} & set(result.rounds[0]), "its mask is private only once it is sampled"
    assert result.file.header.provenance["config"]["codec"] == "side-information"


def test_secret_runs_differ_and_cannot_be_resumed(data: Dataset, tmp_path: Path) -> None:
    secret = {**EXAMPLE, "secret": True}
    one = fedpm.run(small_config(rounds=1, privacy=secret), net=small_net(), data=data, out=tmp_path / "run")
    assert one.file.coded_mask != run(data, rounds=1, privacy=secret).file.coded_mask
    with pytest.raises(ConfigError, match="released twice and counted once"):
        fedpm.resume(tmp_path / "run", net=small_net(), data=data)


def test_without_privacy_nothing_is_said(small_run: tuple[Path, fedpm.Result]) -> None:
    folder, result = small_run
    assert "privacy" not in result.summary
    assert "epsilon" not in result.rounds[0]
    assert settings_of(load(folder / "config.toml"))["privacy"] == {"secret": False}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["privacy.epsilon=8"], "protects nobody while privacy.unit = 'none'"),
        (["privacy.unit=example"], "needs privacy.epsilon"),
        (
            ["privacy.unit=example", "privacy.epsilon=1000"],
            "privacy.epsilon = 1000: should be at most",
        ),
        (["privacy.unit=example", "privacy.epsilon=0"], "privacy.epsilon = 0: should be greater than 0"),
        (["privacy.unit=client", "privacy.epsilon=8", "privacy.noise=1.0"], "belong to privacy.unit = 'example'"),
        (["privacy.unit=example", "privacy.epsilon=8", "algorithm=fedavg"], "only 'fedpm' trains with privacy"),
        (["privacy.unit=example", "privacy.epsilon=8", "algorithm=fedmask"], "only 'fedpm' trains with privacy"),
        (["privacy.unit=client", "privacy.epsilon=8", "codec=shared-randomness"], "the server knows that randomness"),
        (["privacy.unit=client", "privacy.epsilon=8", "codec=relative-entropy"], "the server knows that randomness"),
        (["privacy.unit=example", "privacy.epsilon=8", "precision=bfloat16"], "clipping would not bound it"),
        (["privacy.unit=example", "privacy.epsilon=8", "privacy.delta=1.0"], "privacy.delta = 1.0: should be less"),
    ],
)
def test_settings_that_make_the_guarantee_false_are_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("quickstart", overrides)
    assert reason in str(error.value)


def test_shared_randomness_claims_nothing_and_so_may_code_what_is_private_already() -> None:
    assert load(None, ["privacy.unit=example", "privacy.epsilon=8", "codec=shared-randomness"])


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("layer", "unit", "reason"),
    [
        (nn.BatchNorm1d(32, affine=False), "example", "what travels as floats (2.running_mean"),
        (nn.BatchNorm1d(32, affine=False), "client", "what travels as floats (2.running_mean"),
        (Centred(), "example", "changes with the others in its batch"),
    ],
)
def test_networks_that_mix_examples_are_refused(layer: nn.Module, unit: str, reason: str, data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.ReLU(), nn.Linear(32, 10))
    with pytest.raises(ConfigError) as error:
        build(small_config(privacy={"unit": unit, "epsilon": 8.0}), net=net, data=data)
    assert reason in str(error.value)


@pytest.mark.parametrize("layer", [nn.LayerNorm(32, elementwise_affine=False), nn.Dropout(0.5)])
def test_networks_that_treat_examples_one_by_one_are_taken(layer: nn.Module, data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.ReLU(), nn.Linear(32, 10))
    assert build(small_config(privacy=EXAMPLE), net=net, data=data)


def test_inputs_of_integers_can_be_private_too() -> None:
    x, y = np.arange(40).reshape(20, 2) % 5, np.arange(20) % 2
    words = fedpm.dataset((x.astype(np.int64), y), (x.astype(np.int64), y))
    net = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2))
    config = small_config(rounds=1, data={}, clients={"total": 2}, privacy=EXAMPLE)
    assert fedpm.run(config, net=net, data=words).rounds[0]["epsilon"] <= 8


def test_a_delta_that_would_allow_publishing_an_example_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.delta = 0\.05: should be below 1/68"):
        run(data, privacy={**EXAMPLE, "delta": 0.05})


def test_a_budget_below_one_round_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon = 0\.5: one round alone costs"):
        run(data, privacy={"unit": "example", "epsilon": 0.5, "noise": 1.0})


def test_the_package_for_accounting_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedpm\[privacy\]'"):
        noise_for(7.77, 1e-5, 10, 1.0)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_noise_is_the_least_that_fits(rate: float) -> None:
    noise = noise_for(3.0, 1e-5, 50, rate)
    assert Cost("example", 1e-5, 50, noise, rate).epsilon(1) <= 3
    assert Cost("example", 1e-5, 50, 0.98 * noise, rate).epsilon(1) > 3


def test_full_batches_cost_what_one_gaussian_does() -> None:
    """T steps with noise σ are one Gaussian mechanism with noise σ/√T."""
    from fedpm.privacy.accounting import gaussian_epsilon

    found = Cost("example", 1e-5, 100, 10.0).epsilon(1)
    assert gaussian_epsilon(1.0, 1e-5, 1.0) <= found <= 1.001 * gaussian_epsilon(1.0, 1e-5, 1.0)


def test_sampling_examples_costs_less() -> None:
    assert Cost("example", 1e-5, 100, 2.0, 0.1).epsilon(1) < 0.3 * Cost("example", 1e-5, 100, 2.0, 1.0).epsilon(1)


def test_the_clip_of_a_client_is_the_most_that_fits() -> None:
    clip = clip_for(8.0, 1e-5, 20)
    assert Cost("client", 1e-5, clip=clip).epsilon(20) <= 8 < Cost("client", 1e-5, clip=1.01 * clip).epsilon(20)


def test_a_budget_too_small_for_any_move_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small for any move of a client"):
        clip_for(1e-4, 1e-5, 10)


def test_rounds_within_a_budget() -> None:
    cost = Cost("client", 1e-5, clip=0.5)
    most = cost.rounds_within(4.0, 1000)
    assert cost.epsilon(most) <= 4 < cost.epsilon(most + 1)
    assert cost.rounds_within(4.0, 3) == 3
    assert cost.rounds_within(0.001, 100) == 0
    assert cost.epsilon(0) == 0


def test_an_account_agrees_with_the_run(private_run: tuple[Path, fedpm.Result]) -> None:
    guarantee = guarantee_of(small_config(privacy=EXAMPLE))
    assert guarantee is not None
    costs = guarantee.account(3, 3)
    assert costs["epsilon"] == private_run[1].summary["privacy"]["epsilon"]
    assert costs["after"]["1"] == private_run[1].rounds[0]["epsilon"]


def test_settling_twice_changes_nothing() -> None:
    for unit in ("example", "client"):
        config = settle(small_config(privacy={"unit": unit, "epsilon": 8.0}))
        assert config.privacy.clip != "auto"
        assert settle(config) == config
