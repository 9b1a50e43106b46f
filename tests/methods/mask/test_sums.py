from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.flip_filter import FlipFilter
from fedpm.aggregation.group_median import GroupMedian
from fedpm.aggregation.mean import Mean
from fedpm.aggregation.peer_filter import PeerFilter
from fedpm.aggregation.trimmed_votes import TrimmedVotes
from fedpm.errors import ConfigError, WireError
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState
from fedpm.methods.mask.sums import SubAggregator, SummedFedPM, read_subtotal, summed
from fedpm.wire.message import Kind, Message
from tests.fuzzing import advance
from tests.makers import make_fedpm, upload

ROUND = [4, 0, 9, 2, 7, 5]


def method_with_norms(rule: Aggregator) -> FedPM:
    net = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 10))
    return make_fedpm(net, "relative-entropy", aggregator=rule, reset_every=3)


def altered(method: FedPM, state: MaskState, client: int) -> bytes:
    """Return an upload whose statistics are its client's own."""
    message = Message.from_bytes(upload(method, state, client))
    stats = (state.stats + np.float32(0.1 * client)).astype(np.float32)
    named = (Kind.UPLOAD, message.form, message.fingerprint, message.round, message.client)
    return Message(*named, message.coded, stats).to_bytes()


def by_sums(method: SummedFedPM, state: MaskState, uploads: dict[int, bytes], count: int) -> MaskState:
    """Return the state after a round in which sub-aggregators had every count-th client each."""
    parts = []
    for number in range(count):
        mine = list(uploads)[number::count]
        adding = SubAggregator(method, state, number)
        for client in mine:
            adding.add(client, uploads[client])
        parts.append(read_subtotal(method, state, number, mine, adding.message()))
    return method.aggregate(state, iter([method.total(state, parts, list(uploads))]))


@pytest.mark.parametrize("rule", [Mean, lambda: TrimmedVotes(0.2)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sums_lead_to_the_state_of_single_masks_to_the_last_bit(rule: Callable[[], Aggregator], count: int) -> None:
    method = method_with_norms(rule())
    sums = summed(method)
    one = other = method.init()
    for _ in range(2):
        uploads = {client: altered(method, one, client) for client in ROUND}
        updates = (method.decode(one, client, data) for client, data in uploads.items())
        one, other = method.aggregate(one, updates), by_sums(sums, other, uploads, count)
        assert np.array_equal(one.posterior.ones, other.posterior.ones)
        assert one.posterior.total == other.posterior.total
        assert np.array_equal(one.stats, other.stats)
        assert method.broadcast(one) == sums.broadcast(other)
        assert method.holders(one) == sums.holders(other)


def test_who_is_refused_comes_through_with_the_reason() -> None:
    method = method_with_norms(Mean())
    state = method.init()
    adding = SubAggregator(method, state, 0)
    adding.add(1, upload(method, state, 1))
    adding.add(2, upload(method, state, 3))
    adding.add(3, upload(method, state, 3)[:-1])
    found = read_subtotal(method, state, 0, [1, 2, 3], adding.message())
    assert found.clients == (1,)
    assert {client: error.kind for client, error in found.refused.items()} == {2: "wrong client", 3: "garbage"}
    with pytest.raises(WireError) as direct:
        method.decode(state, 3, upload(method, state, 3)[:-1])
    assert str(found.refused[3]) == str(direct.value)


def test_a_sum_of_nobody_is_empty() -> None:
    method = method_with_norms(Mean())
    state = method.init()
    adding = SubAggregator(method, state, 3)
    adding.add(8, b"garbage")
    found = read_subtotal(method, state, 3, [8], adding.message())
    assert not found.clients
    assert not found.ones.any()


def test_only_the_sum_that_is_due_is_read() -> None:
    method = method_with_norms(Mean())
    state = method.init()
    adding = SubAggregator(method, state, 0)
    for client in (1, 2):
        adding.add(client, upload(method, state, client))
    data = adding.message()
    later = advance(method, state, 3)
    cases: list[tuple[MaskState, int, list[int], bytes, str]] = [
        (state, 1, [1, 2], data, "client 0 instead of 1"),
        (later, 0, [1, 2], data, "round 1 instead of 2"),
        (state, 0, [1, 3], data, "other clients"),
        (state, 0, [1, 2, 3], data, "should be the 3 of its clients"),
        (state, 0, [1], upload(method, state, 1), "should be the 1|cut|kind 2"),
        (state, 0, [1, 2], data[:-1], "cut"),
    ]
    for now, number, given, sent, words in cases:
        with pytest.raises(WireError, match=words):
            read_subtotal(method, now, number, given, sent)
    other = make_fedpm(method.network, "shared-randomness")
    with pytest.raises(WireError, match="of another coder"):
        read_subtotal(other, other.init(), 0, [1, 2], data)


def test_a_client_counts_once() -> None:
    method = method_with_norms(Mean())
    state = method.init()
    adding = SubAggregator(method, state, 0)
    for _ in range(2):
        adding.add(1, upload(method, state, 1))
    with pytest.raises(WireError, match="twice"):
        read_subtotal(method, state, 0, [1, 2], adding.message())


@pytest.mark.parametrize("rule", [PeerFilter, FlipFilter, GroupMedian])
def test_rules_that_look_at_single_masks_are_refused(rule: Callable[[], Aggregator]) -> None:
    with pytest.raises(ConfigError, match=r"looks at single uploads.*subtotals = false"):
        summed(method_with_norms(rule()))
