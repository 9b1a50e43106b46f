"""A federation on secure sums is the one on open sums, whoever goes missing, and its server sees no single mask."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedpm
from fedpm.aggregation.mean import Mean
from fedpm.data.datasets import Dataset, Shard
from fedpm.engines.base import Reply, Task
from fedpm.engines.inprocess import Sequential
from fedpm.errors import ConfigError, EngineError, WireError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.round import Exchange
from fedpm.methods.base import ClientResult
from fedpm.methods.mask.downlink import Form
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.secured import SecureFedPM, secured
from fedpm.methods.mask.state import MaskState
from fedpm.methods.statistics import Floats, read_floats, rounded
from fedpm.rng import Streams
from fedpm.secure.fixed import mean_of, to_fixed
from fedpm.secure.messages import OVERHEAD
from fedpm.secure.session import Session
from fedpm.secure.vectors import Part, sum_bits
from fedpm.wire.message import Message
from tests.engines.missing import Only
from tests.secure.sums import Run
from tests.small import small_config, small_net

SECURE = {"codec": "secure-sum", "rounds": 2, "clients": {"total": 5}, "local": {"epochs": 1}}
OPEN = {**SECURE, "codec": "side-information"}


def run(data: Dataset, settings: dict[str, object], *missing: tuple[int, ...]) -> fedpm.Result:
    return fedpm.run(small_config(**settings), net=small_net(), data=data, start=lambda made: Only(made, missing))


@pytest.mark.parametrize(
    ("missing", "left_out"),
    [
        ((), set()),
        (((1, 2, 0),), {(1, 2)}),
        (((1, 2, 1),), {(1, 2)}),
        (((1, 2, 2),), {(1, 2)}),
        (((1, 2, 3),), set()),
        (((1, 0, 1), (1, 4, 2), (2, 3, 0), (2, 1, 2)), {(1, 0), (1, 4), (2, 3), (2, 1)}),
    ],
    ids=["nobody", "advertise", "shares", "masked", "reveal", "several"],
)
def test_the_model_is_that_of_the_open_sum(
    data: Dataset, missing: tuple[tuple[int, ...], ...], left_out: set[tuple[int, ...]]
) -> None:
    secure, plain = run(data, SECURE, *missing), run(data, OPEN, *left_out)
    assert secure.file.coded_mask == plain.file.coded_mask
    for record, other in zip(secure.rounds, plain.rounds, strict=True):
        for key in ("accuracy", "loss", "theta_histogram", "theta_layers"):
            assert record[key] == other[key]
        assert record["rejected"].keys() == other["rejected"].keys()
        gone = [where for where in missing if where[0] == record["round"]]
        assert record["faults"] == ({"missing": len(gone)} if gone else {})


@pytest.mark.slow
def test_worker_processes_sum_to_the_same(data: Dataset) -> None:
    secure = fedpm.run(small_config(**SECURE, workers=2), net=small_net(), data=data)
    assert secure.file.coded_mask == run(data, OPEN).file.coded_mask


def test_masks_by_threshold_sum_to_the_same(data: Dataset) -> None:
    secure, plain = (run(data, {**given, "algorithm": "fedmask"}) for given in (SECURE, OPEN))
    assert secure.file.coded_mask == plain.file.coded_mask


def test_earlier_masks_count_as_in_open_sums(data: Dataset) -> None:
    drawn = {"rounds": 4, "clients": {"total": 6, "sampled": 3}}
    for rule in ({"discount": 0.5}, {"discount": 0.0, "reset_every": 3}):
        secure, plain = (run(data, {**given, **drawn, "aggregation": rule}) for given in (SECURE, OPEN))
        assert secure.file.coded_mask == plain.file.coded_mask
        assert [one["theta_layers"] for one in secure.rounds] == [one["theta_layers"] for one in plain.rounds]


def test_all_that_passes_is_counted_and_costs_the_bits_of_a_sum(data: Dataset) -> None:
    told: dict[int, list[tuple[int, int]]] = {}
    forms: set[tuple[int, Form]] = set()

    class Listening(Only):
        def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
            forms.update((round, Form(task.broadcast[6])) for task in tasks if not task.stage)
            for reply in super().run(round, tasks):
                told.setdefault(round, []).append((reply.sent, reply.received))
                yield reply

    result = fedpm.run(small_config(**SECURE), net=small_net(), data=data, start=lambda made: Listening(made, ()))
    size, clients, others = result.summary["parameters"], 5, 4
    up = 4 * OVERHEAD + 228 + 54 * others + 3 * math.ceil(size / 8) + 22 * clients  # the messages of docs/secure-sum.md
    for record in result.rounds:
        passed = told[record["round"]]
        assert len(passed) == 4 * clients
        assert record["downlink_bytes"] == sum(sent for sent, _ in passed)
        assert record["uplink_bytes"] == sum(received for _, received in passed) == clients * up
        assert record["uplink_bpp"] == pytest.approx(8 * up / size)
        assert "train_loss" not in record, "a figure of one client is no part of the sum"
        assert "uplink_paper_bpp" not in record
    assert forms == {(1, Form.SEED), (2, Form.GIVEN_COUNTS)}, "coded against the past, and nothing is relayed"


def test_bits_per_parameter_at_conv4_are_those_of_the_sum() -> None:
    size = 458_698
    agreed = Session.of(b"", tuple(range(10)), (Part(size, sum_bits(10)), Part(0, sum_bits(10, 45))))
    summed = Run(agreed)
    summed.values = {client: [np.ones(size, np.uint8), np.zeros(0, np.uint64)] for client in range(10)}
    assert summed.sum()[0] == [10] * size
    bits = 8 * sum(len(summed.sent[stage][3]) for stage in summed.sent) / size
    assert bits <= 1.01 * math.ceil(math.log2(11))


def normed() -> nn.Module:
    """Return a network with norm statistics and with parameters that are trained as floats."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def round_one(made: Experiment) -> tuple[MaskState, Exchange]:
    """Do the first round with all five clients."""
    method, exchange = made.method, Exchange(list(range(5)))
    assert isinstance(method, SecureFedPM)
    state = method.init()
    tasks = [Task(client, method.broadcast(state).payload) for client in range(5)]
    return method.aggregate(state, exchange.staged(method.stages(state), Sequential(made.clients), 1, tasks)), exchange


def uploads(made: Experiment) -> list[Message]:
    """Return what clients send openly in the first round."""
    tasks = [Task(client, made.method.broadcast(made.method.init()).payload) for client in range(5)]
    answers = [reply.answer for reply in Sequential(made.clients).run(1, tasks)]
    return [Message.from_bytes(answer.payload) for answer in answers if isinstance(answer, ClientResult)]


def test_floats_are_the_mean_in_fixed_point(data: Dataset) -> None:
    made, plain = (build(small_config(**given), net=normed(), data=data) for given in (SECURE, OPEN))
    network = made.method.network
    known = network.initial_stats()
    stats = [read_floats(network, upload, known) for upload in uploads(plain)]
    state, _ = round_one(made)
    assert len(state.stats) == 64
    summed = mean_of(np.stack([to_fixed(one) for one in stats]).sum(axis=0), 5)
    assert np.array_equal(state.stats, rounded(network, summed, known)), "as clients will be told it"
    assert np.abs(summed - np.mean(stats, axis=0, dtype=np.float64)).max() < 2**-23
    floats = Floats(network)
    for one in stats:
        floats.add(one)
    trained = np.abs(summed - floats.aggregate(known)) < 2**-23
    assert trained[32:].all(), "of trained parameters, open sums are the mean too"
    assert not trained[:32].all(), "of statistics the median"


def test_a_client_whose_training_diverged_takes_no_part(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = (build(small_config(**given), net=normed(), data=data) for given in (SECURE, OPEN))
    network = made.method.network
    known = network.initial_stats()
    expected = [read_floats(network, upload, known) for upload in uploads(plain)]
    train = FedPM.client_update

    def diverge(self: FedPM, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        result = train(self, broadcast, shard, rng, memory)
        wrong = np.full(self.network.stats_size, np.nan if rng.client == 1 else 2e6, np.float32)
        sent = replace(Message.from_bytes(result.payload), stats=wrong, floats=b"")
        return replace(result, payload=sent.to_bytes()) if rng.client in (1, 3) else result

    monkeypatch.setattr(FedPM, "client_update", diverge)
    state, exchange = round_one(made)
    assert exchange.rejected == dict.fromkeys(("1", "3"), "it takes no part: its training diverged")
    assert state.posterior.total == 3
    stayed = np.stack([to_fixed(expected[client]) for client in (0, 2, 4)])
    assert np.array_equal(state.stats, rounded(network, mean_of(stayed.sum(axis=0), 3), known))


@pytest.mark.slow
def test_a_budget_of_privacy_is_that_of_open_uploads(data: Dataset) -> None:
    private = {"privacy": {"unit": "client", "epsilon": 8.0}}
    secure, plain = (run(data, {**given, **private}) for given in (SECURE, OPEN))
    assert secure.file.coded_mask == plain.file.coded_mask
    assert secure.summary["privacy"] == plain.summary["privacy"], "no less is claimed (docs/privacy.md)"


def test_below_the_threshold_the_run_ends_and_says_who_failed(data: Dataset) -> None:
    words = r"round 2: secure sum: 2 of 5 clients are left after the stage masked.*'1'.*'3'.*'4'"
    with pytest.raises(EngineError, match=words):
        run(data, SECURE, (2, 1, 1), (2, 3, 2), (2, 4, 2))


def test_where_too_few_tell_shares_the_run_ends_and_says_so(data: Dataset) -> None:
    words = r"round 1: secure sum: 2 shares of a secret of client 0 were told.*left out so far: nobody"
    with pytest.raises(EngineError, match=words):
        run(data, SECURE, (1, 1, 3), (1, 3, 3), (1, 4, 3))


def test_a_quorum_is_of_those_in_the_sum(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Only, "quorum", 4)
    assert run(data, SECURE, (1, 1, 0), (2, 3, 3)).summary["rounds"] == 2
    with pytest.raises(EngineError, match=r"round 1: 3 of 5 clients gave an answer .* quorum of 4"):
        run(data, SECURE, (1, 1, 0), (1, 3, 2))


def test_the_server_takes_no_open_upload(data: Dataset) -> None:
    made, plain = (build(small_config(**given), net=small_net(), data=data) for given in (SECURE, OPEN))
    method = made.method
    assert isinstance(method, SecureFedPM)
    upload = uploads(plain)[0].to_bytes()
    with pytest.raises(WireError, match="upload instead of a message of a secure sum"):
        method.decode(method.init(), 0, upload)
    with pytest.raises(WireError, match="not one of a secure sum"):
        method.stages(method.init()).receive(0, upload)


def test_a_client_sums_only_with_those_that_the_seed_names(data: Dataset) -> None:
    settings = {**SECURE, "clients": {"total": 5, "sampled": 3}}
    made = build(small_config(**settings), net=small_net(), data=data)
    chosen = made.participation.of(1)
    stranger = next(client for client in range(5) if client not in chosen)
    with pytest.raises(WireError, match=f"client {stranger} is none of the clients"):
        made.clients.run(1, Task(stranger, made.method.broadcast(made.method.init()).payload))


@pytest.mark.parametrize(
    ("ones", "floats", "words"),
    [
        (0, -1e6, "secure sum: the mean of the clients' norm statistics"),
        (7, 0.0, "secure sum: 7 of 5 masks have a one somewhere: some client lied"),
    ],
)
def test_what_no_training_gives_spoils_the_sum(data: Dataset, ones: int, floats: float, words: str) -> None:
    made = build(small_config(**SECURE), net=normed(), data=data)
    assert isinstance(made.method, SecureFedPM)
    stages, summed = made.method.stages(made.method.init()), Run(made.method.session(1))
    lie = np.zeros(made.method.network.size, np.uint8)
    lie[3] = ones
    fixed = to_fixed(np.full(64, floats, np.float32))
    summed.values = {client: [lie if client == 2 else 0 * lie, fixed] for client in range(5)}
    stages._server = summed.server
    summed.sum()
    with pytest.raises(EngineError, match=words):
        stages.update()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aggregation": {"relay": True}}, "aggregation.relay = true passes single uploads on"),
        ({"clients": {"total": 1}}, "a sum over one client is its mask"),
        ({"clients": {"total": 5, "sampled": 1}}, "clients.sampled = 1: a sum over one client"),
    ],
)
def test_what_needs_single_uploads_is_refused(data: Dataset, settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(small_config(**{**SECURE, **settings}), net=small_net(), data=data)


def test_a_missing_package_is_named(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpm.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"codec = 'secure-sum' needs cryptography: pip install 'fedpm\[secure\]'"):
        build(small_config(**SECURE), net=small_net(), data=data)


def test_rules_that_look_at_single_uploads_are_refused(data: Dataset) -> None:
    class Choosy(Mean):
        sums = False

    made = build(small_config(**OPEN), net=small_net(), data=data)
    assert isinstance(made.method, FedPM)
    with pytest.raises(ConfigError, match="aggregator: it looks at single uploads"):
        secured(replace(made.method, aggregator=Choosy()), made.participation)
    with pytest.raises(ConfigError, match="aggregator: it looks at single uploads"):
        build(small_config(**SECURE, aggregator="peer-filter"), net=small_net())
    with pytest.raises(ConfigError, match="only FedPM and what is built on it"):
        secured(object(), made.participation)
