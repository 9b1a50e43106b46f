"""A secure sum is the open sum, or there is none."""

import math

import numpy as np
import pytest
from scipy.special import chdtri

from fedpm.errors import ConfigError, EngineError, WireError
from fedpm.secure import keys
from fedpm.secure.messages import OVERHEAD, Secret, Stage
from fedpm.secure.session import Session, degree
from fedpm.secure.vectors import Part, Vectors, sum_bits
from tests.secure.sums import Missing, Run, open_sum, session

SPARSE = Session(b"sparse", tuple(range(0, 60, 3)), (Part(50, sum_bits(20)), Part(3, 24)), degree=6, threshold=4)
"""Twenty clients with six neighbours each."""


@pytest.mark.parametrize("agreed", [session(2), session(3), session(10), SPARSE], ids=["2", "3", "10", "sparse"])
def test_the_sum_is_the_open_sum(agreed: Session) -> None:
    run = Run(agreed)
    assert run.sum() == open_sum(run.values, agreed.clients)
    assert run.server.summed == set(agreed.clients)


@pytest.mark.parametrize(
    "missing",
    [
        {Stage.ADVERTISE: range(4)},
        {Stage.SHARES: range(4)},
        {Stage.MASKED: range(4)},
        {Stage.REVEAL: range(4)},
        {Stage.ADVERTISE: [9], Stage.SHARES: [0], Stage.MASKED: [5], Stage.REVEAL: [7]},
    ],
    ids=["advertise", "shares", "masked", "reveal", "each"],
)
def test_clients_may_go_missing_down_to_the_threshold(missing: Missing) -> None:
    run = Run(session(10))
    assert run.session.threshold == 6
    found = run.sum(missing)
    stayed = {c for c in range(10) if not any(c in missing.get(s, ()) for s in list(Stage)[:5])}
    assert run.server.summed == stayed
    assert found == open_sum(run.values, stayed)


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARES, Stage.MASKED, Stage.REVEAL])
def test_below_the_threshold_there_is_no_sum(stage: Stage) -> None:
    with pytest.raises(EngineError, match=r"5 .*fewer than the threshold of 6.*sum again"):
        Run(session(10)).sum({stage: range(5)})


def test_on_a_sparse_graph_any_neighbourhood_may_lose_its_spare_holders() -> None:
    ring = SPARSE.clients
    gone = [c for c in ring if c != ring[0] and c in SPARSE.neighbours(ring[0])][:2]
    run = Run(SPARSE)
    assert run.sum({Stage.MASKED: gone}) == open_sum(run.values, set(ring) - set(gone))
    assert not run.refused


def test_a_client_alone_among_strangers_gives_nothing_away() -> None:
    gone = sorted(SPARSE.neighbours(0))[:4]  # of client 0 and its six neighbours three are left, four are needed
    run = Run(SPARSE).until(Stage.REVEAL, {Stage.MASKED: gone})
    run.step()
    assert "3 of the clients around 0 sent inputs, fewer than the threshold of 4" in run.refused[0]
    with pytest.raises(EngineError, match="shares of a secret of client"):
        run.server.sum()


def test_a_thousand_clients_need_few_neighbours() -> None:
    agreed = session(1000)
    assert agreed.degree < 6 * math.log2(1000)
    assert degree(10_000) < 2 * degree(100)
    around = {client: agreed.neighbours(client) for client in agreed.clients}
    assert all(len(others) == agreed.degree and client not in others for client, others in around.items())
    assert all(client in around[other] for client, others in around.items() for other in others)


def test_what_passes_beside_the_input_grows_with_the_neighbours_alone() -> None:
    run = Run(session(1000)).until(Stage.SHARES)
    assert len(run.told[7]) == OVERHEAD + run.session.degree * 232
    assert len(run.answer(7)) == OVERHEAD + run.session.degree * 54


def test_small_cohorts_share_with_all() -> None:
    assert [degree(clients) for clients in (2, 3, 10, 20)] == [1, 2, 9, 19]


def test_a_masked_input_has_the_bits_of_the_sum() -> None:
    size = 100_000
    agreed = Session.of(b"", tuple(range(10)), (Part(size, sum_bits(10)), Part(0, 24)))
    run = Run(agreed).until(Stage.REVEAL)
    assert {len(sent) for sent in run.sent[Stage.MASKED].values()} == {OVERHEAD + 4 * size // 8}
    assert [sum_bits(k) for k in (1, 3, 4, 10, 15, 16, 100)] == [
        math.ceil(math.log2(k + 1)) for k in (1, 3, 4, 10, 15, 16, 100)
    ]


def masked(run: Run, client: int) -> Vectors:
    vectors = Vectors(run.session.parts)
    vectors.add_bytes(run.sent[Stage.MASKED][client][OVERHEAD:])
    return vectors


def server_view(run: Run, secret: Secret) -> list[int]:
    """Return the mask of client 1 of two under the pad that is left once the server was told one of its secrets."""
    view, one, other = masked(run, 1), run.clients[1], run.clients[0]
    if secret is Secret.SEED:
        view.add_pad(keys.own_seed(run.session, one._seed, 1), sign=-1)
    else:
        public = other._pads.public_key().public_bytes_raw()
        view.add_pad(keys.pair_seed(run.session, one._pads, public, 1, 0), sign=1)
    seen: list[int] = view.values()[0].tolist()
    return seen


def far_from_uniform(values: list[int], levels: int) -> bool:
    counts = np.bincount(values, minlength=levels)
    statistic = float(((counts - len(values) / levels) ** 2).sum() / (len(values) / levels))
    return statistic > float(chdtri(levels - 1, 1e-9))


@pytest.mark.parametrize("secret", Secret)
def test_what_the_server_sees_of_a_fixed_mask_is_uniform(secret: Secret) -> None:
    views = [server_view(Run(session(2, context=b"%d" % r)).until(Stage.REVEAL), secret) for r in range(200)]
    assert not far_from_uniform([view[0] for view in views], 4)
    assert not far_from_uniform([value for view in views for value in view], 4)


@pytest.mark.parametrize("secret", Secret)
def test_with_one_pad_left_out_it_is_not(secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, add_pad = (
        1 if secret is Secret.SEED else -1,
        Vectors.add_pad,
    )  # of client 1: its own is added, the other taken
    with monkeypatch.context() as patch:
        patch.setattr(Vectors, "add_pad", lambda self, seed, *, sign: sign == kept and add_pad(self, seed, sign=sign))
        run = Run(session(2, 1000)).until(Stage.REVEAL)
    view = server_view(run, secret)
    assert far_from_uniform(view, 4)
    assert view == run.values[1][0].tolist()


def test_two_runs_of_a_session_share_no_pad() -> None:
    one, two = (Run(session(3, 400)).until(Stage.REVEAL) for _ in range(2))
    assert np.mean(np.equal(masked(one, 0).values()[0], masked(two, 0).values()[0])) < 0.5


def test_values_that_do_not_fit_are_refused() -> None:
    run = Run(session(3)).until(Stage.MASKED)
    with pytest.raises(ConfigError, match=r"values from 4 to 4 do not fit into 2 bits"):
        run.clients[0].mask(run.told[0], [np.full(50, 4), np.zeros(3, int)])
    with pytest.raises(ConfigError, match=r"do not fit the session's"):
        run.clients[1].mask(run.told[1], [np.zeros(49, int), np.zeros(3, int)])


@pytest.mark.parametrize(
    ("clients", "neighbours", "threshold", "said"),
    [
        ((1,), 1, 2, "two or more"),
        ((1, 1, 2), 2, 2, "ascending"),
        ((2, 1), 1, 2, "ascending"),
        ((-1, 1), 1, 2, "from 0"),
        ((0, 1, 2, 3, 4), 3, 3, "even number"),
        ((0, 1, 2), 3, 2, "even number"),
        ((0, 1, 2, 3), 3, 2, "more than half"),
        ((0, 1, 2, 3), 3, 5, "at most all"),
    ],
)
def test_impossible_sessions_are_refused(clients: tuple[int, ...], neighbours: int, threshold: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Session(b"", clients, (Part(1, 2),), neighbours, threshold)


def test_sessions_differ_in_all_they_agree_on() -> None:
    part, two, other = Part(5, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 5)
    sessions = [
        Session(b"a", two, (part,), 4, 3), Session(b"b", two, (part,), 4, 3), Session(b"a", other, (part,), 4, 3),
        Session(b"a", two, (Part(5, 4),), 4, 3), Session(b"a", two, (part,), 4, 4), Session(b"a", two, (part,), 2, 2),
        Session(b"a", two, (part, part), 4, 3),
    ]  # fmt: skip
    assert len({one.digest for one in sessions}) == len(sessions)


def test_the_server_takes_steps_in_order() -> None:
    run = Run(session(3))
    with pytest.raises(EngineError, match="not the last"):
        run.server.sum()
    first = run.clients[0].advertise()
    run.server.receive(0, first)
    with pytest.raises(WireError, match="answered already"):
        run.server.receive(0, first)
    later = Run(session(3)).until(Stage.REVEAL)
    later.step()
    with pytest.raises(EngineError, match="no stage after the last"):
        later.server.advance()
    assert [v.tolist() for v in later.server.sum()] == [v.tolist() for v in later.server.sum()]
