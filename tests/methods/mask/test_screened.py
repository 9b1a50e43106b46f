"""Nothing of an upload that a rule left out reaches the state: neither its mask nor what it sent as floats."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.flip_filter import FlipFilter
from fedpm.aggregation.peer_filter import PeerFilter
from fedpm.methods.mask.state import MaskUpdate
from tests.makers import make_fedpm, upload


@pytest.mark.parametrize("rule", [FlipFilter, PeerFilter])
def test_floats_and_masks_of_a_liar_count_for_nothing(rule: Callable[[], Aggregator]) -> None:
    method = make_fedpm(nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 10)), aggregator=rule())
    start = method.init()
    honest = [method.decode(start, client, upload(method, start, client)) for client in range(5)]
    honest = [replace(update, stats=update.stats + np.float32(update.client)) for update in honest]
    lie = MaskUpdate(9, 1 - honest[0].mask, np.full_like(honest[0].stats, 1e5), honest[0].coded)
    without, lied = (method.aggregate(start, iter(updates)) for updates in (honest, [*honest[:2], lie, *honest[2:]]))
    assert list(lied.rejected) == [9]
    assert not without.rejected
    assert np.array_equal(lied.stats, without.stats)
    arrays, others = method.to_arrays(lied), method.to_arrays(without)
    assert all(np.array_equal(array, others[name]) for name, array in arrays.items())
    for since in (None, 1):
        assert method.broadcast(lied, since=since) == method.broadcast(without, since=since)
