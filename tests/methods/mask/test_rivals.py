"""Known answers of the mask methods that prune and rank: saliency, signs, votes, bits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.model.pruned import PrunedNetwork, saliency
from fedpm.rng import Streams
from fedpm.training.ranks import top
from fedpm.wire.message import OVERHEAD, Message
from tests.makers import make_method
from tests.small import small_config, small_net

NET = MaskedNetwork(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)))
ONES = np.ones((1, 20), np.float32)


def test_saliency_is_what_flows_through_a_weight() -> None:
    first, bias, second, other = NET.pieces(np.abs(NET.dense_weights(5)).astype(np.float64))
    first, second = first.reshape(30, 20), second.reshape(10, 30)
    flow = np.concatenate([(first * second.sum(0)[:, None]).ravel(), bias, (second * first.sum(1)).ravel(), other])
    found = saliency(NET, 5, ONES)
    np.testing.assert_allclose(found, flow / flow.max(), rtol=1e-6)
    through = [layer.sum() for layer in NET.pieces(found)]
    assert through[0] == pytest.approx(through[2]), "every layer passes on all that flows"
    assert through[1] == through[3] == 0, "biases are 0, and pruned first"


def test_pruning_keeps_the_most_salient_and_tells_networks_apart() -> None:
    pruned = PrunedNetwork(NET, 5, 0.3, ONES)
    flow = saliency(NET, 5, ONES)
    assert pruned.size == len(pruned.kept) == round(0.3 * NET.size)
    assert flow[pruned.kept].min() >= np.delete(flow, pruned.kept).max()
    weights = pruned.weights(5).numpy()
    assert np.array_equal(weights[pruned.kept], NET.dense_weights(5)[pruned.kept])
    assert np.count_nonzero(weights) == pruned.size
    assert len({network.fingerprint(5) for network in (NET, pruned, PrunedNetwork(NET, 5, 0.31, ONES))}) == 3
    words = MaskedNetwork(nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(12, 3)))
    assert saliency(words, 5, np.ones((1, 2), np.int64)).max() == 1


def test_signs_of_kept_weights_are_all_that_is_sent_and_shipped(data: Dataset) -> None:
    config = small_config(algorithm="hidenseek", hidenseek={"keep": 0.4}, local={"epochs": 4})
    result = fedpm.run(config, net=small_net(), data=data)
    assert all(record["uplink_bpp"] < 0.4 + 0.25 for record in result.rounds), "at most keep bits, and a frame"
    assert result.rounds[0]["uplink_bpp"] > 0.05, "signs turned"
    start = MaskedNetwork(small_net()).dense_weights(0)
    weights = np.concatenate([tensor.numpy().ravel() for tensor in result.model.state_dict().values()])
    kept = weights != 0
    assert kept.sum() == round(0.4 * len(weights))
    assert np.array_equal(np.abs(weights[kept]), np.abs(start[kept]))
    assert 0.02 < (weights[kept] != start[kept]).mean() < 0.98
    assert sum(layer["kept"] * layer["size"] for layer in result.summary["layers"]) == pytest.approx(
        kept.sum(), rel=1e-3
    )
    assert len(result.file.coded_mask) * 8 < 0.95 * len(weights), "signs of 0.4, and which they are"
    again = fedpm.Model.from_bytes(result.file.to_bytes())
    x = torch.from_numpy(data.test.x[:5])
    assert torch.equal(again.module(small_net())(x), result.model(x))
    with pytest.raises(ConfigError, match="cannot be packed"):
        again.module(small_net(), packed=True)


def test_the_global_sign_is_that_of_the_majority() -> None:
    method = make_method("hidenseek", NET, (1, 20))
    state, stats = method.init(), np.zeros(0, np.float32)
    votes = [
        np.resize(pattern, method.pruned.size).astype(np.uint8)
        for pattern in ((1, 1, 0, 0), (1, 1, 1, 0), (1, 0, 0, 0))
    ]
    update = method.votes.decode(state, 2, uploaded(method, state, votes[0]))
    assert np.array_equal(update.mask, votes[0])
    after = method.aggregate(state, [replace(update, client=c, mask=vote, stats=stats) for c, vote in enumerate(votes)])
    signs = method.mask(after, "thresholded")
    assert np.array_equal(signs[method.pruned.kept], np.resize((1, 1, -1, -1), method.pruned.size))
    assert method.mask(after, "expected") is None


def uploaded(method: object, state: object, mask: np.ndarray) -> bytes:
    """Return an upload of client 2 with these signs."""
    votes = method.votes  # type: ignore[attr-defined]
    _, coded = votes.coding.coder.encode(mask.astype(np.float32), votes.context(state, 2), Streams(5).at(1, 2))
    fingerprint = votes.network.fingerprint(5)
    from fedpm.wire.message import Kind

    return Message(Kind.UPLOAD, votes.form, fingerprint, 1, 2, coded.data, np.zeros(0, np.float32)).to_bytes()


def test_ranks_are_added_up_and_the_highest_are_kept() -> None:
    network = MaskedNetwork(nn.Linear(6, 1, bias=False))
    method = make_method("frl", network, (1, 6), keep=0.5)
    start = method.init()
    assert sorted(start.ranks) == list(range(6))
    from fedpm.methods.mask.frl import RankUpdate

    votes = [np.array(order) for order in ((0, 1, 2, 3, 4, 5), (5, 1, 0, 2, 4, 3), (5, 0, 2, 1, 3, 4))]
    after = method.aggregate(start, [RankUpdate(vote, start.stats) for vote in votes])  # sums 10 2 4 6 11 12
    assert after.ranks.tolist() == [3, 0, 1, 2, 4, 5]
    assert method.mask(after, "thresholded").tolist() == [1, 0, 0, 0, 1, 1]
    assert method.read(method.broadcast(after).payload, 2)[0].tolist() == after.ranks.tolist()
    scores = torch.from_numpy(method._scores(after.ranks))
    assert top(scores, 3).tolist() == [bool(bit) for bit in method.mask(after, "thresholded")]
    assert (scores > 0).sum() == 3
    assert top(scores, 6).all()


def test_ranks_take_little_more_than_the_logarithm_of_their_number() -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 10, bias=False)))
    method = make_method("frl", network, (1, 128))
    voted = replace(method.init(), votes=1)
    bits = sum(math.lgamma(part.size + 1) / math.log(2) for part in network.parts)
    broadcast = method.broadcast(voted)
    assert bits < broadcast.ideal_bits < 8 * (len(broadcast.payload) - OVERHEAD) < 1.01 * bits
