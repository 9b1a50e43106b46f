import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.algorithms.fedpm import FedPM, FedPMState, initial, sample_mask
from fedpm.algorithms.posterior import Posterior, reset_due
from fedpm.data.datasets import Dataset
from fedpm.errors import WireError
from fedpm.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training import Local
from tests.conftest import small_net


def make(**settings: int) -> FedPM:
    return FedPM(MaskedNetwork(small_net()), seed=5, local=Local(1, 64, 0.1), **settings)


def random_theta(clients: int, size: int) -> np.ndarray:
    uniform = Streams(8).uint32("theta", clients * size) / 2**32
    return uniform.reshape(clients, size).astype(np.float32)


def test_estimate_is_unbiased_and_within_the_bound_of_equation_2() -> None:
    clients, size, trials = 5, 400, 2000
    theta = random_theta(clients, size)
    truth = theta.mean(0, dtype=np.float64)
    errors, total = [], np.zeros(size)
    for trial in range(trials):
        rng = [Streams(0).at(trial, k) for k in range(clients)]
        estimate = np.mean([sample_mask(theta[k], rng[k].uint32("upload", size)) for k in range(clients)], axis=0)
        total += estimate
        errors.append(((estimate - truth) ** 2).sum())
    bias = total / trials - truth
    standard_error = np.sqrt((theta * (1 - theta)).sum(0) / clients**2 / trials)
    assert np.abs(bias / standard_error).max() < 5
    exact = (theta * (1 - theta)).sum() / clients**2
    assert np.mean(errors) == pytest.approx(exact, rel=0.02)
    assert exact <= size / (4 * clients)


def test_the_bound_is_met_with_equality_at_one_half() -> None:
    theta = np.full(10_000, 0.5, np.float32)
    masks = [sample_mask(theta, Streams(k).uint32("upload", 10_000)) for k in range(4)]
    assert ((np.mean(masks, axis=0) - 0.5) ** 2).sum() == pytest.approx(10_000 / 16, rel=0.05)


def test_sampling_is_exact_at_the_ends() -> None:
    uniform = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    assert sample_mask(np.zeros(4, np.float32), uniform).tolist() == [0, 0, 0, 0]
    assert sample_mask(np.ones(4, np.float32), uniform).tolist() == [1, 1, 1, 1]


@given(st.integers(1, 50), st.integers(1, 20), st.data())
def test_mode_is_the_formula_of_equation_4(total: int, lam0: int, data: st.DataObject) -> None:
    ones = data.draw(st.integers(0, total))
    theta = Posterior(np.array([ones], np.uint32), total, lam0).mode()[0]
    alpha, beta = lam0 + ones, lam0 + total - ones
    assert theta == np.float32((alpha - 1) / (alpha + beta - 2))


def masks_of_rounds(rounds: int, clients: int, size: int) -> list[list[np.ndarray]]:
    return [[Streams(t).at(t, k).bits("m", size) for k in range(clients)] for t in range(rounds)]


def fold(algorithm: FedPM, state: FedPMState, masks: list[np.ndarray]) -> FedPMState:
    return algorithm.aggregate(state, ((mask, np.zeros(0, np.float32)) for mask in masks))


def test_gamma_one_with_lam0_one_equals_the_mean() -> None:
    algorithm = make()
    state = algorithm.init()
    for masks in masks_of_rounds(3, 4, algorithm.masked.size):
        state = fold(algorithm, state, masks)
        assert np.array_equal(algorithm.posterior(state).mode(), np.mean(masks, axis=0).astype(np.float32))


def test_posterior_accumulates_between_resets() -> None:
    algorithm = make(reset_every=3, lam0=2)
    state = algorithm.init()
    rounds = masks_of_rounds(4, 4, algorithm.masked.size)
    for masks in rounds[:3]:
        state = fold(algorithm, state, masks)
    assert state.total == 12
    assert np.array_equal(state.ones, np.sum(rounds[:3], axis=(0, 1)))
    assert np.array_equal(algorithm.posterior(state).mode(), ((state.ones + 1) / 14).astype(np.float32))
    state = fold(algorithm, state, rounds[3])
    assert state.total == 4
    assert [reset_due(t, 3) for t in range(1, 8)] == [True, False, False, True, False, False, True]


def test_a_round_without_replies_keeps_the_belief() -> None:
    algorithm = make()
    start = algorithm.init()
    state = fold(algorithm, start, masks_of_rounds(1, 2, algorithm.masked.size)[0])
    later = fold(algorithm, state, [])
    assert later.round == 2
    assert np.array_equal(later.ones, state.ones)
    assert len(algorithm.broadcast(fold(algorithm, start, []))) < 64  # still only the seed


def test_initial_theta_is_a_sigmoid_of_standard_normal_scores() -> None:
    theta = initial(3, 200_000).mode()
    scores = np.log(theta / (1 - theta))
    assert scores.mean() == pytest.approx(0, abs=0.01)
    assert scores.std() == pytest.approx(1, abs=0.015)  # 256 levels lose a little of the tails
    assert np.array_equal(theta, initial(3, 200_000).mode())


def test_first_broadcast_is_a_seed_and_later_ones_are_no_floats() -> None:
    algorithm = make()
    state = algorithm.init()
    assert len(algorithm.broadcast(state)) == 36 + 12
    state = fold(algorithm, state, masks_of_rounds(1, 10, algorithm.masked.size)[0])
    assert len(algorithm.broadcast(state)) * 8 / algorithm.masked.size < np.log2(11) + 1


def test_a_client_reads_what_the_server_believes() -> None:
    algorithm = make(lam0=3, reset_every=5)
    state = algorithm.init()
    for masks in [[], *masks_of_rounds(2, 4, algorithm.masked.size)]:
        state = fold(algorithm, state, masks)
        seed, theta, _ = algorithm._read(algorithm.broadcast(state), state.round + 1)
        assert seed == 5
        assert np.array_equal(theta, algorithm.posterior(state).mode())


def test_an_upload_is_accepted_only_in_its_place(data: Dataset) -> None:
    algorithm = make()
    state = algorithm.init()
    rng = Streams(5).at(1, 2)
    payload = algorithm.client_update(algorithm.broadcast(state), data.train, rng).payload
    mask, _ = algorithm.decode(state, 2, payload)
    assert set(np.unique(mask)) == {0, 1}
    with pytest.raises(WireError, match="client 2 instead of 3"):
        algorithm.decode(state, 3, payload)
    with pytest.raises(WireError, match="round 1 instead of 2"):
        algorithm.decode(fold(algorithm, state, [mask]), 2, payload)
    other = FedPM(algorithm.masked, seed=6, local=algorithm.local)
    with pytest.raises(WireError, match="model"):
        other.decode(state, 2, payload)


def test_modes_of_the_global_mask() -> None:
    algorithm = make()
    state = fold(algorithm, algorithm.init(), masks_of_rounds(1, 10, algorithm.masked.size)[0])
    theta = algorithm.mask(state, "expected")
    assert np.array_equal(algorithm.mask(state, "thresholded"), theta > 0.5)
    sampled = algorithm.mask(state, "sampled")
    assert np.array_equal(sampled, algorithm.mask(state, "sampled"))
    assert sampled[theta == 0].sum() == 0
    assert sampled.mean() == pytest.approx(theta.mean(), abs=0.05)
