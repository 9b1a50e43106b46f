from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpm.aggregation.posterior import Posterior, reset_due
from fedpm.data.datasets import Dataset
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.methods.mask.downlink import MAX_STEPS, Received, relay
from fedpm.methods.mask.fedpm import FedPM, FedPMState, Update, divergence
from fedpm.methods.mask.window import Window
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local
from fedpm.wire.coders.table import CODERS
from fedpm.wire.masks import sample_mask
from fedpm.wire.message import Message
from tests.conftest import small_net
from tests.fuzzing import advance, upload


def make(net: nn.Module | None = None, **settings: object) -> FedPM:
    return FedPM(MaskedNetwork(net or small_net()), seed=5, local=Local(1, 64, 0.1), **settings)


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
    return algorithm.aggregate(
        state, (Update(client, mask, np.zeros(0, np.float32)) for client, mask in enumerate(masks))
    )


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
    assert len(algorithm.broadcast(fold(algorithm, start, [])).payload) < 64  # still only the seed


def test_initial_theta_is_a_sigmoid_of_standard_normal_scores() -> None:
    theta = Posterior.initial(3, 200_000).mode()
    scores = np.log(theta / (1 - theta))
    assert scores.mean() == pytest.approx(0, abs=0.01)
    assert scores.std() == pytest.approx(1, abs=0.015)  # 256 levels lose a little of the tails
    assert np.array_equal(theta, Posterior.initial(3, 200_000).mode())


def test_half_starts_from_a_random_half_of_the_weights_on_both_ends() -> None:
    algorithm = FedPM(MaskedNetwork(small_net(), init="half"), seed=5, local=Local(1, 64, 0.1))
    state = algorithm.init()
    theta = algorithm.posterior(state).mode()
    assert set(np.unique(theta)) == {0, 1}
    assert theta.mean() == pytest.approx(0.5, abs=0.05)
    received = algorithm._downlink.read(algorithm.broadcast(state).payload, 1)
    assert np.array_equal(received.belief_of(algorithm.masked).mode(), theta)
    with pytest.raises(WireError, match="model"):
        make()._downlink.read(algorithm.broadcast(state).payload, 1)


def test_first_broadcast_is_a_seed_and_later_ones_are_no_floats() -> None:
    algorithm = make()
    state = algorithm.init()
    assert len(algorithm.broadcast(state).payload) == 36 + 16
    state = fold(algorithm, state, masks_of_rounds(1, 10, algorithm.masked.size)[0])
    assert len(algorithm.broadcast(state).payload) * 8 / algorithm.masked.size < np.log2(11) + 0.5


@pytest.mark.parametrize("codec", sorted(CODERS))
@pytest.mark.parametrize("reset_every", [1, 3])
def test_a_client_reads_what_the_server_believes_in_every_form(codec: str, reset_every: int) -> None:
    algorithm = make(lam0=3, reset_every=reset_every, codec=codec)
    state, memory = algorithm.init(), {1: algorithm.broadcast(algorithm.init()).payload}
    for masks in [*masks_of_rounds(4, 3, algorithm.masked.size), [], *masks_of_rounds(2, 5, algorithm.masked.size)]:
        state = fold(algorithm, state, masks)
        number = state.round + 1
        forms = [(algorithm.broadcast(state), b"")]
        for since in set(algorithm.holders(state).values()):
            assert algorithm.memory(state) == memory[state.round]
            forms.append((algorithm.broadcast(state, since=since), memory[since]))
            assert len(forms[-1][0].payload) <= len(forms[0][0].payload)
        for form, held in forms:
            received = algorithm._downlink.read(form.payload, number, held)
            assert received.seed == 5
            assert np.array_equal(received.posterior.mode(), algorithm.posterior(state).mode())
            memory[number] = algorithm.remember(form.payload, number, held)
            assert memory[number] == forms[0][0].payload


@pytest.mark.parametrize("codec", sorted(CODERS))
def test_relayed_uploads_say_the_same_as_counts(codec: str) -> None:
    algorithm = make(lam0=2, reset_every=2, codec=codec)
    state = algorithm.init()
    for _ in range(4):  # from the seed, after a reset, and between resets
        memory, start = algorithm.broadcast(state).payload, state
        before = algorithm._downlink.read(memory, state.round + 1)
        state = advance(algorithm, state, 3)
        posterior = algorithm.posterior(state)
        content = Received(algorithm.seed, state.round + 1, posterior, state.stats)
        uploads = b"".join(relay(k, Message.from_bytes(upload(algorithm, start, k)).coded) for k in range(3))
        forms = [
            algorithm._downlink.full(content),
            algorithm._downlink.brief(content, before, [0, 1, 2], shared=False),
            algorithm._downlink.brief(content, before, [0, 1, 2], shared=True),
            algorithm._downlink.relayed(content, CODERS[codec][0], uploads),
        ]
        for form in forms:
            received = algorithm._downlink.read(form.payload, state.round + 1, memory)
            assert received.posterior is not None
            assert np.array_equal(received.posterior.ones, posterior.ones)
            assert (received.posterior.total, received.posterior.lam0) == (posterior.total, 2)
        held = algorithm.holders(state).get(0)
        sent = algorithm.broadcast(state, since=held).payload
        assert len(sent) == min(len(form.payload) for form in forms if codec == "shared-randomness" or form != forms[2])


@pytest.mark.parametrize("codec", sorted(CODERS))
@pytest.mark.parametrize("relayed", [True, False])
def test_a_client_that_missed_rounds_gets_what_it_missed(codec: str, relayed: bool) -> None:
    algorithm = make(nn.Linear(150, 200), reset_every=3, codec=codec, relay=relayed)
    states, memory = [algorithm.init()], {1: algorithm.broadcast(algorithm.init()).payload}
    sure = np.abs(Streams(0).bits("m", algorithm.masked.size) - np.float32(0.005))  # of one mind: steps are short
    coder = CODERS[codec][1]
    for number in range(2, 14):  # client 0 answers the first round and every fifth; the others always
        updates = []
        for client in range(0 if number % 5 == 2 else 1, 4):
            mask, coded = coder.encode(sure, algorithm.known(states[-1], client), Streams(6).at(number, client))
            updates.append(Update(client, mask, np.zeros(0, np.float32), coded.data))
        states.append(algorithm.aggregate(states[-1], updates))
        memory[number] = algorithm.broadcast(states[-1]).payload
    lengths = []
    for state in states[7:11]:
        number, since = state.round + 1, algorithm.holders(state).get(0)
        assert since == next(r for r in range(state.round, 0, -1) if r % 5 == 1)
        sent = algorithm.broadcast(state, since=since).payload
        assert len(sent) < len(memory[number])
        for held in range(since, number):  # a node may remember more for the sake of another client
            assert algorithm.remember(sent, number, memory[held]) == memory[number]
        nested = algorithm._downlink.chained(Received(5, number, None, state.stats), (Broadcast(sent),)).payload
        with pytest.raises(WireError, match="form 5"):
            algorithm.remember(nested, number, memory[state.round])
        for held in (None, since - 1, number):
            with pytest.raises(WireError, match="which this client does not hold") as lacks:
                algorithm.remember(sent, number, memory.get(held, b""))
            assert lacks.value.kind == "lacks"
        lengths.append(len(sent))
    assert lengths == sorted(lengths)


def test_the_past_is_kept_only_while_it_is_worth_sending() -> None:
    algorithm = make(nn.Linear(150, 200))
    state = algorithm.init()
    for _ in range(12):
        state = fold(algorithm, state, 3 * [Streams(0).bits("m", algorithm.masked.size)])
    window = Window.of(state.window)
    assert len(window.steps) == MAX_STEPS
    assert window.array().tobytes() == state.window.tobytes()
    state = algorithm.aggregate(
        state, [Update(7, Streams(1).bits("m", algorithm.masked.size), np.zeros(0, np.float32))]
    )
    for masks in masks_of_rounds(3, 3, algorithm.masked.size):  # clients of no mind at all
        state = fold(algorithm, state, masks)
    assert len(Window.of(state.window).steps) <= 1
    assert 7 not in algorithm.holders(state)


def test_uploads_are_kept_only_while_they_are_worth_relaying() -> None:
    algorithm = make()
    few = Update(3, Streams(0).bits("m", algorithm.masked.size), np.zeros(0, np.float32), bytes(10))
    assert algorithm._relay(b"before", few) == b"before" + relay(3, bytes(10))
    assert algorithm._relay(b"", replace(few, coded=bytes(algorithm.masked.size))) is None
    assert algorithm._relay(None, few) is None
    assert make(relay=False)._relay(b"", few) is None


def test_a_client_without_the_past_says_so() -> None:
    algorithm = make()
    state = algorithm.init()
    for _ in range(2):  # clients that stay of one mind, so that the brief form is the shorter one
        state = fold(algorithm, state, 3 * [Streams(0).bits("m", algorithm.masked.size)])
    brief = algorithm.broadcast(state, since=2).payload
    with pytest.raises(WireError, match="builds on that of round 2, which this client does not hold"):
        algorithm._downlink.read(brief, 3)
    with pytest.raises(WireError, match="does not hold; it holds that of round 1"):
        algorithm._downlink.read(brief, 3, algorithm.broadcast(algorithm.init()).payload)


def test_divergence_is_that_of_the_definition() -> None:
    p, q = np.float32([0.2, 0, 1]), np.float32([0.5, 0.25, 0.5])
    expected = [0.2 * np.log2(0.4) + 0.8 * np.log2(1.6), -np.log2(0.75), 1]
    assert divergence(p, q) == pytest.approx(np.mean(expected), rel=1e-6)


def test_an_upload_is_accepted_only_in_its_place(data: Dataset) -> None:
    algorithm = make()
    state = algorithm.init()
    rng = Streams(5).at(1, 2)
    payload = algorithm.client_update(algorithm.broadcast(state).payload, data.train, rng).payload
    mask = algorithm.decode(state, 2, payload).mask
    assert set(np.unique(mask)) == {0, 1}
    with pytest.raises(WireError, match="client 2 instead of 3"):
        algorithm.decode(state, 3, payload)
    with pytest.raises(WireError, match="round 1 instead of 2"):
        algorithm.decode(fold(algorithm, state, [mask]), 2, payload)
    other = FedPM(algorithm.masked, seed=6, local=algorithm.local)
    with pytest.raises(WireError, match="model"):
        other.decode(state, 2, payload)
    with pytest.raises(WireError, match="'shared-randomness' instead of 'frequency'"):
        make(codec="frequency").decode(state, 2, payload)


def test_modes_of_the_global_mask() -> None:
    algorithm = make()
    state = fold(algorithm, algorithm.init(), masks_of_rounds(1, 10, algorithm.masked.size)[0])
    theta = algorithm.mask(state, "expected")
    assert np.array_equal(algorithm.mask(state, "thresholded"), theta > 0.5)
    sampled = algorithm.mask(state, "sampled")
    assert np.array_equal(sampled, algorithm.mask(state, "sampled"))
    assert sampled[theta == 0].sum() == 0
    assert sampled.mean() == pytest.approx(theta.mean(), abs=0.05)
