"""The network that is scored and shipped is a mean of the last rounds; clients go on from the last one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpm
from fedpm import config as configs
from fedpm.errors import ConfigError
from fedpm.methods.averaging import Average, averaged
from fedpm.model.masking import MaskedNetwork
from fedpm.wire.theta import Vector
from tests.makers import make_fedpm, upload
from tests.small import small_config, small_net

VALUES = [np.array([x, -x], np.float32) for x in (1.0, 4.0, 2.0, 8.0, 16.0)]


def means(share: float) -> list[Vector]:
    """Return the mean after each round."""
    found, mean = [], None
    for round, values in enumerate(VALUES, 1):
        mean = averaged(mean, values, values + 1, share=share, round=round)
        assert mean is not None
        np.testing.assert_allclose(mean.stats, mean.values + 1, rtol=1e-6)
        found.append(mean.values)
    return found


def test_over_all_rounds_it_is_their_plain_mean() -> None:
    for round, mean in enumerate(means(1.0), 1):
        np.testing.assert_allclose(mean, np.mean(VALUES[:round], axis=0), rtol=1e-6)


def test_while_the_share_is_less_than_a_round_it_is_the_last_round() -> None:
    found = means(0.25)
    assert all((mean == values).all() for mean, values in zip(found[:4], VALUES, strict=False))
    np.testing.assert_allclose(found[4], VALUES[3] + 0.8 * (VALUES[4] - VALUES[3]))  # 1 / (0.25 · 5)


def test_without_a_share_nothing_is_held() -> None:
    assert averaged(None, VALUES[0], VALUES[0], share=0.0, round=1) is None


def test_masks_come_from_the_mean_and_clients_are_told_of_the_last_round() -> None:
    network = MaskedNetwork(small_net())
    plain, mean = (make_fedpm(network, average=share) for share in (0.0, 1.0))
    states = [plain.init(), mean.init()]
    thetas = []
    for _ in range(3):
        uploads = [[method.decode(state, k, upload(method, state, k)) for k in range(4)] for method, state in
                   zip((plain, mean), states, strict=True)]  # fmt: skip
        states = [method.aggregate(state, got) for method, state, got in
                  zip((plain, mean), states, uploads, strict=True)]  # fmt: skip
        thetas.append(states[1].posterior.theta.floats())
    assert mean.broadcast(states[1]).payload == plain.broadcast(states[0]).payload
    assert (mean.mask(states[1], "expected") == thetas[-1]).all()
    over = np.mean(thetas, axis=0)
    sure = abs(over - 0.5) > 1e-6
    assert (mean.mask(states[1], "thresholded") == (over > 0.5))[sure].all()
    assert (mean.mask(states[1], "thresholded") != plain.mask(states[0], "thresholded")).any()


@pytest.mark.parametrize("method", ["fedpm", "fedavg"])
def test_a_run_that_goes_on_ends_in_the_same_mean(method: str, tmp_path: Path) -> None:
    def stop(round: fedpm.Round) -> None:
        if round["round"] == 2:
            round.stop()

    def run(share: float, **how: Any) -> Any:
        return fedpm.run(small_config(algorithm=method, average=share), net=small_net(), progress=False, **how)

    whole, alone = run(1.0), run(0.0)
    run(1.0, out=tmp_path / "run", on_round=stop)
    ended = fedpm.resume(tmp_path / "run", net=small_net(), progress=False)
    losses = [[record["loss"] for record in result.rounds] for result in (whole, ended, alone)]
    assert losses[0] == losses[1]
    assert losses[0][0] == losses[2][0]
    assert losses[0][1:] != losses[2][1:]
    assert [record["uplink_bytes"] for record in whole.rounds] == [record["uplink_bytes"] for record in alone.rounds]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["average=0.5", 'algorithm="frl"'], "algorithm = 'frl' ships the last round alone"),
        (["average=0.5", 'evaluation.at="clients"'], "scored by clients, who know the last round alone"),
        (["average=1.5"], "average"),
    ],
)
def test_where_there_is_no_mean_it_is_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configs.load("quickstart", settings)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ([], 0.125),
        (["clients.sampled=5"], 0.25),
        (['evaluation.at="clients"'], 0.0),
        (['fedpm.effort="paper"'], 0.0),
        (['algorithm="fedavg"'], 0.0),
        (['algorithm="fedavg"', "clients.sampled=5"], 0.25),
        (['algorithm="fedavg"', "clients.sampled=5", 'evaluation.at="clients"'], 0.0),
        (['algorithm="frl"'], 0.0),
    ],
)
def test_fedpm_ships_a_mean_unless_clients_score(given: list[str], share: float) -> None:
    assert configs.resolved(configs.load("quickstart", given)).average == share


def test_a_mean_travels_in_arrays() -> None:
    kept = Average(VALUES[0], VALUES[1])
    assert {name: list(array) for name, array in kept.to_arrays().items()} == {
        "average": [1.0, -1.0], "average_stats": [4.0, -4.0]
    }  # fmt: skip
