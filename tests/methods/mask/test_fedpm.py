from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpm.aggregation.mean import Mean
from fedpm.aggregation.posterior import Posterior, reset_due
from fedpm.data.datasets import Dataset
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.methods.mask.downlink import HEAD, MAX_STEPS, Addition, DownlinkWriter, Form
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.history import Window
from fedpm.methods.mask.state import Arrivals, MaskState, MaskUpdate
from fedpm.methods.relay import join, relay
from fedpm.model.masking import MaskedNetwork
from fedpm.registry import CODERS
from fedpm.rng import SERVER, Streams
from fedpm.training.local import Local
from fedpm.training.scores import ScoreTrainer, divergence
from fedpm.wire.masks import sample_mask
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import FINE, Vector
from tests.fuzzing import advance
from tests.makers import make_fedpm, upload
from tests.small import small_net

every_coder = pytest.mark.parametrize("codec", CODERS.names())


def make(net: nn.Module | None = None, **settings: Any) -> FedPM:
    return make_fedpm(net or small_net(), **settings)


def theta_of(state: MaskState) -> Vector:
    return state.posterior.theta.floats()


def random_theta(clients: int, size: int) -> npt.NDArray[Any]:
    uniform = Streams(8).uint32("theta", clients * size) / 2**32
    return uniform.reshape(clients, size).astype(np.float32)


@pytest.mark.slow
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
    theta = Posterior(np.array([ones], np.uint32), total, lam0).theta.floats()[0]
    alpha, beta = lam0 + ones, lam0 + total - ones
    assert theta == np.float32((alpha - 1) / (alpha + beta - 2))


def masks_of_rounds(rounds: int, clients: int, size: int) -> list[list[npt.NDArray[Any]]]:
    return [[Streams(t).at(t, k).bits("m", size) for k in range(clients)] for t in range(rounds)]


def fold(algorithm: FedPM, state: MaskState, masks: list[npt.NDArray[Any]]) -> MaskState:
    return algorithm.aggregate(
        state, (MaskUpdate(client, mask, np.zeros(0, np.float32)) for client, mask in enumerate(masks))
    )


def test_gamma_one_with_lam0_one_equals_the_mean() -> None:
    algorithm = make()
    state = algorithm.init()
    for masks in masks_of_rounds(3, 4, algorithm.network.size):
        state = fold(algorithm, state, masks)
        assert np.array_equal(theta_of(state), np.mean(masks, axis=0).astype(np.float32))


def test_posterior_accumulates_between_resets() -> None:
    algorithm = make(reset_every=3, lam0=2)
    state = algorithm.init()
    rounds = masks_of_rounds(4, 4, algorithm.network.size)
    for masks in rounds[:3]:
        state = fold(algorithm, state, masks)
    assert state.posterior.total == 12
    assert np.array_equal(state.posterior.ones, np.sum(rounds[:3], axis=(0, 1)))
    assert np.array_equal(theta_of(state), ((state.posterior.ones + 1) / 14).astype(np.float32))
    state = fold(algorithm, state, rounds[3])
    assert state.posterior.total == 4
    assert [reset_due(t, t - 1, 3) for t in range(1, 8)] == [True, False, False, True, False, False, True]


def test_discounted_masks_count_less_with_every_round() -> None:
    algorithm = make(kept=2, lam0=1)
    state = algorithm.init()
    rounds = masks_of_rounds(4, 3, algorithm.network.size)
    for masks in rounds:
        state = fold(algorithm, state, masks)
    sums = [sum(mask.astype(int) for mask in masks) for masks in rounds]
    expected = np.zeros(algorithm.network.size, int)
    for ones in sums:
        expected = expected // 2 + 4 * ones
    assert np.array_equal(state.posterior.ones, expected)
    assert state.posterior.total == 12 + 6 + 3 + 1  # 12, then 12 + 18 // 2, …: halves, rounded down
    exact = sum(0.5 ** (3 - age) * ones for age, ones in enumerate(sums)) / (3 * 1.875)
    assert np.abs(theta_of(state) - exact).max() < 0.1


def test_a_reset_that_falls_on_a_round_without_masks_is_made_up_for() -> None:
    algorithm = make(reset_every=3)
    state, totals = algorithm.init(), []
    for masks in [*masks_of_rounds(3, 4, algorithm.network.size), [], *masks_of_rounds(4, 4, algorithm.network.size)]:
        state = fold(algorithm, state, masks)
        totals.append(state.posterior.total)
    assert totals == [4, 8, 12, 12, 4, 8, 4, 8]  # of rounds 1 to 8: resets in 1, 5 in place of 4, and 7


def test_a_round_without_replies_keeps_the_belief() -> None:
    algorithm = make()
    start = algorithm.init()
    state = fold(algorithm, start, masks_of_rounds(1, 2, algorithm.network.size)[0])
    later = fold(algorithm, state, [])
    assert later.round == 2
    assert np.array_equal(later.posterior.ones, state.posterior.ones)
    assert len(algorithm.broadcast(fold(algorithm, start, [])).payload) < 64  # still only the seed


def test_initial_theta_is_a_sigmoid_of_standard_normal_scores() -> None:
    network = MaskedNetwork(nn.Linear(400, 500))
    theta = Posterior.initial(network, 3).theta.floats()
    scores = np.log(theta / (1 - theta))
    assert scores.mean() == pytest.approx(0, abs=0.01)
    assert scores.std() == pytest.approx(1, abs=0.015)  # 256 levels lose a little of the tails
    assert np.array_equal(theta, Posterior.initial(network, 3).theta.floats())


def test_zero_sum_starts_on_both_ends_from_units_whose_weights_sum_to_nothing() -> None:
    algorithm = make_fedpm(MaskedNetwork(small_net(), init="zero-sum"))
    state = algorithm.init()
    told = algorithm.reader.read(algorithm.broadcast(state).payload, 1)
    assert np.array_equal(told.posterior.theta.floats(), theta_of(state))
    module = algorithm.module(state, "thresholded")
    assert all(weight.flatten(1).sum(1).abs().max() < 1e-5 for weight in module.parameters() if weight.ndim > 1)
    with pytest.raises(WireError, match="model"):  # a client that would start from another half
        make_fedpm(MaskedNetwork(small_net(), init="half")).reader.read(algorithm.broadcast(state).payload, 1)


def test_half_starts_from_a_random_half_of_the_weights_on_both_ends() -> None:
    algorithm = make_fedpm(MaskedNetwork(small_net(), init="half"))
    state = algorithm.init()
    theta = theta_of(state)
    assert set(np.unique(theta)) == {0, 1}
    assert theta.mean() == pytest.approx(0.5, abs=0.05)
    told = algorithm.reader.read(algorithm.broadcast(state).payload, 1)
    assert np.array_equal(told.posterior.theta.floats(), theta)
    with pytest.raises(WireError, match="model"):
        make().reader.read(algorithm.broadcast(state).payload, 1)


def test_first_broadcast_is_a_seed_and_later_ones_are_no_floats() -> None:
    algorithm = make()
    state = algorithm.init()
    assert len(algorithm.broadcast(state).payload) == 36 + 16
    state = fold(algorithm, state, masks_of_rounds(1, 10, algorithm.network.size)[0])
    assert len(algorithm.broadcast(state).payload) * 8 / algorithm.network.size < np.log2(11) + 0.5


@every_coder
@pytest.mark.parametrize(("reset_every", "kept"), [(1, 4), (3, 4), (1, 2)])
def test_a_client_reads_what_the_server_believes_in_every_form(codec: str, reset_every: int, kept: int) -> None:
    algorithm = make(lam0=3, reset_every=reset_every, kept=kept, codec=codec)
    state, memory = algorithm.init(), {1: algorithm.broadcast(algorithm.init()).payload}
    for masks in [*masks_of_rounds(4, 3, algorithm.network.size), [], *masks_of_rounds(2, 5, algorithm.network.size)]:
        state = fold(algorithm, state, masks)
        number = state.round + 1
        forms = [(algorithm.broadcast(state), b"")]
        for since in set(algorithm.holders(state).values()):
            assert algorithm.memory(state) == memory[state.round]
            forms.append((algorithm.broadcast(state, since=since), memory[since]))
            assert len(forms[-1][0].payload) <= len(forms[0][0].payload)
        for form, held in forms:
            told = algorithm.reader.read(form.payload, number, held)
            assert told.seed == 5
            assert np.array_equal(told.posterior.theta.floats(), theta_of(state))
            memory[number] = algorithm.remember(form.payload, number, held)
            assert memory[number] == forms[0][0].payload


@pytest.mark.slow
@every_coder
def test_relayed_uploads_say_the_same_as_counts(codec: str) -> None:
    algorithm = make(lam0=2, reset_every=2, codec=codec)
    state = algorithm.init()
    for _ in range(4):  # from the seed, after a reset, and between resets
        memory, start = algorithm.broadcast(state).payload, state
        before = algorithm.reader.read(memory, state.round + 1)
        state = advance(algorithm, state, 3)
        posterior, content = state.posterior, state.history.content
        uploads = b"".join(relay(k, Message.from_bytes(upload(algorithm, start, k)).coded) for k in range(3))
        added = Addition(before, (0, 1, 2), 3, uploads=uploads)
        writers = [
            replace(algorithm.writer, coding=replace(algorithm.coding, shared_uniform=shared))
            for shared in (False, True)
        ]
        forms = [
            writers[0].full(content),
            *(writer.brief(content, added) for writer in writers),
            writers[0].relayed(content, added),
        ]
        for form in forms:
            told = algorithm.reader.read(form.payload, state.round + 1, memory)
            assert told.posterior.learned
            assert np.array_equal(told.posterior.ones, posterior.ones)
            assert (told.posterior.total, told.posterior.lam0) == (posterior.total, 2)
        held = algorithm.holders(state).get(0)
        sent = algorithm.broadcast(state, since=held).payload
        assert len(sent) == min(len(form.payload) for form in forms if codec == "shared-randomness" or form != forms[2])


@pytest.mark.slow
@every_coder
@pytest.mark.parametrize("relayed", [True, False])
def test_a_client_that_missed_rounds_gets_what_it_missed(codec: str, relayed: bool) -> None:
    algorithm = make(nn.Linear(150, 200), reset_every=3, kept=3 if relayed else 4, codec=codec, relay=relayed)
    states, memory = [algorithm.init()], {1: algorithm.broadcast(algorithm.init()).payload}
    sure = np.abs(Streams(0).bits("m", algorithm.network.size) - np.float32(0.005))  # of one mind: steps are short
    coder = algorithm.coding.coder
    for number in range(2, 14):  # client 0 answers the first round and every fifth; the others always
        updates = []
        for client in range(0 if number % 5 == 2 else 1, 4):
            mask, coded = coder.encode(sure, algorithm.context(states[-1], client), Streams(6).at(number, client))
            updates.append(MaskUpdate(client, mask, np.zeros(0, np.float32), coded.data))
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
        nested = algorithm.writer.chain(state.history.content, (Broadcast(sent),)).payload
        with pytest.raises(WireError, match="form 5"):
            algorithm.remember(nested, number, memory[state.round])
        for other in (None, since - 1, number):
            with pytest.raises(WireError, match="which this client does not hold") as lacks:
                algorithm.remember(sent, number, memory.get(other, b"") if other else b"")
            assert lacks.value.kind == "lacks"
        lengths.append(len(sent))
    assert lengths == sorted(lengths)


def test_the_past_is_kept_only_while_it_is_worth_sending() -> None:
    algorithm = make(nn.Linear(150, 200))
    state = algorithm.init()
    for _ in range(12):
        state = fold(algorithm, state, 3 * [Streams(0).bits("m", algorithm.network.size)])
    window = state.history.window
    assert len(window.steps) == MAX_STEPS
    assert Window.from_bytes(window.to_bytes()) == window
    state = algorithm.aggregate(
        state, [MaskUpdate(7, Streams(1).bits("m", algorithm.network.size), np.zeros(0, np.float32))]
    )
    for masks in masks_of_rounds(3, 3, algorithm.network.size):  # clients of no mind at all
        state = fold(algorithm, state, masks)
    assert len(state.history.window.steps) <= 1
    assert 7 not in algorithm.holders(state)


def test_uploads_are_kept_only_while_they_are_worth_relaying() -> None:
    network = make().network
    few = MaskUpdate(3, Streams(0).bits("m", network.size), np.zeros(0, np.float32), bytes(10))
    much = replace(few, coded=bytes(network.size))
    for updates, keep, uploads in (
        ([few, few], True, 2 * relay(3, bytes(10))),
        ([few, much], True, None),
        ([much, few], True, None),
        ([few], False, None),
    ):
        arrivals = Arrivals(network, Mean(), relay=keep)
        assert arrivals.fold(updates, make().init().posterior.theta).count == len(updates)
        assert arrivals.uploads == uploads


def test_nothing_is_coded_before_the_next_round_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make()
    state = advance(algorithm, advance(algorithm, algorithm.init(), 3), 3)
    algorithm.broadcast(state)
    coded: list[str] = []
    for name in ("full", "step", "chain"):
        monkeypatch.setattr(DownlinkWriter, name, lambda *_, name=name: coded.append(name))
    state = advance(algorithm, state, 3)
    arrays = algorithm.to_arrays(state)
    assert not coded
    monkeypatch.undo()
    again = algorithm.from_arrays(arrays)
    for since in (None, *algorithm.holders(state).values()):
        assert algorithm.broadcast(again, since=since) == algorithm.broadcast(state, since=since)
    assert algorithm.holders(again) == algorithm.holders(state)
    assert algorithm.memory(again) == algorithm.memory(state)


def test_a_client_without_the_past_says_so() -> None:
    algorithm = make()
    state = algorithm.init()
    for _ in range(2):  # clients that stay of one mind, so that the brief form is the shorter one
        state = fold(algorithm, state, 3 * [Streams(0).bits("m", algorithm.network.size)])
    brief = algorithm.broadcast(state, since=2).payload
    with pytest.raises(WireError, match="builds on that of round 2, which this client does not hold"):
        algorithm.reader.read(brief, 3)
    with pytest.raises(WireError, match="does not hold; it holds that of round 1"):
        algorithm.reader.read(brief, 3, algorithm.broadcast(algorithm.init()).payload)


@pytest.mark.parametrize("since", [2, 1, None])
def test_a_client_starts_ahead_of_a_broadcast_that_tells_what_was_before(since: int | None, data: Dataset) -> None:
    network = MaskedNetwork(small_net())
    started: list[Vector] = []

    class Noted(ScoreTrainer):
        def train(self, theta: Vector, **given: Any) -> Any:
            started.append(theta)
            return super().train(theta, **given)

    algorithm = make_fedpm(network, trainer=Noted(network, Local(1, 64, 0.1, lookahead=0.5)))
    state, memory, thetas = algorithm.init(), b"", []
    for number in (1, 2):
        memory = memory if number > (since or 2) else algorithm.remember(state.history.broadcast(None).payload, number)
        thetas.append(theta_of(state))
        state = advance(algorithm, state, 3)
    broadcast = algorithm.broadcast(state, since=since).payload
    algorithm.client_update(broadcast, data.train, Streams(1).at(3, 0), memory if since else b"")
    whole = algorithm.whole(broadcast, 3, algorithm.memory(state))
    algorithm.client_update(whole, data.train, Streams(1).at(3, 0))
    assert whole == algorithm.broadcast(state).payload
    assert (broadcast == whole) == (since is None)
    ahead = theta_of(state) + np.float32(0.5) * (theta_of(state) - thetas[-1])
    for start in started:
        assert np.array_equal(start, started[0]), "whoever remembers nothing is told what was before"
    assert np.allclose(started[0], ahead.clip(0.01, 0.99), atol=1 / FINE)
    twice = join([algorithm.memory(state), algorithm.memory(state)])
    with pytest.raises(WireError, match="two full ones"):
        algorithm.reader.read(forged_broadcast(algorithm, state, Form.BOTH, twice), 3)


def test_divergence_is_that_of_the_definition() -> None:
    p, q = np.array([0.2, 0, 1], np.float32), np.array([0.5, 0.25, 0.5], np.float32)
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
    other = replace(algorithm, seed=6)
    with pytest.raises(WireError, match="model"):
        other.decode(state, 2, payload)
    with pytest.raises(WireError, match=r"form 3 instead of 1 \(frequency\)"):
        make(codec="frequency").decode(state, 2, payload)


def test_modes_of_the_global_mask() -> None:
    algorithm = make()
    state = fold(algorithm, algorithm.init(), masks_of_rounds(1, 10, algorithm.network.size)[0])
    theta = algorithm.mask(state, "expected")
    assert np.array_equal(algorithm.mask(state, "thresholded"), theta > 0.5)
    sampled = algorithm.mask(state, "sampled")
    assert np.array_equal(sampled, algorithm.mask(state, "sampled"))
    assert sampled[theta == 0].sum() == 0
    assert sampled.mean() == pytest.approx(theta.mean(), abs=0.05)


def forged_broadcast(algorithm: FedPM, state: MaskState, form: Form, body: bytes, seed: int = 5) -> bytes:
    """Return a broadcast of the next round with a right frame around any body."""
    fingerprint, content = algorithm.network.fingerprint(5), state.history.content
    head = HEAD.pack(seed, 1, content.posterior.total)
    return Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, head + body, content.stats).to_bytes()


def test_relayed_uploads_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make()
    state = advance(algorithm, advance(algorithm, algorithm.init(), 3), 3)
    decoded: list[bytes] = []
    monkeypatch.setattr(type(algorithm.coding.coder), "decode", lambda coder, data, context: decoded.append(data))
    body = bytes((algorithm.coding.form,)) + 100 * relay(0, b"")
    with pytest.raises(WireError, match="adds 100 masks and makes a total of 3"):
        algorithm.reader.read(forged_broadcast(algorithm, state, Form.RELAYED, body), 3, algorithm.memory(state))
    assert not decoded


def test_a_broadcast_of_another_seed_is_refused() -> None:
    algorithm = make()
    forged = forged_broadcast(algorithm, algorithm.init(), Form.SEED, b"", seed=6)
    with pytest.raises(WireError, match="broadcast of seed 6 instead of 5: of another run"):
        algorithm.reader.read(forged, 1)


def test_steps_hold_nothing_that_builds_on_nothing() -> None:
    algorithm = make()
    state = advance(algorithm, advance(algorithm, algorithm.init(), 3), 3)
    for form in (algorithm.broadcast(algorithm.init()), algorithm.broadcast(state)):
        chain = algorithm.writer.chain(state.history.content, (form,)).payload
        with pytest.raises(WireError, match=r"form [01]"):
            algorithm.remember(chain, 3, algorithm.memory(state))
