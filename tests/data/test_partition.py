"""Splits: no example lost or doubled, the bound on classes is hard, sizes follow j_n, nothing is endless."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpm.data.partition import by_classes, by_dirichlet, histogram, iid, split
from fedpm.errors import DataError
from fedpm.rng import Streams

SEEDS = st.integers(0, 2**63 - 1)


def labels_of(*counts: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


def balanced(classes: int, each: int) -> np.ndarray:
    return labels_of(*[each] * classes)


def shares(clients: int, seed: int, total: int) -> npt.NDArray[np.float64]:
    """Return the sizes p_n·|D| of Section 4.2, as fractions, for the j_n of a seed."""
    j = 10 + (Streams(seed).words("sizes", clients) % 91).astype(np.int64)
    fractions: npt.NDArray[np.float64] = j / j.sum() * total
    return fractions


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any))
    return labels_of(*counts), draw(st.integers(1, sum(counts)))


def assert_is_a_split(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> None:
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(len(part) for part in parts) >= 1
    assert all((np.diff(part) > 0).all() for part in parts)


@given(problems(), SEEDS)
@settings(max_examples=100, deadline=None)
def test_iid_uses_every_example_once_in_equal_parts(problem: tuple[np.ndarray, int], seed: int) -> None:
    labels, clients = problem
    parts = iid(labels, clients, seed)
    assert_is_a_split(parts, labels, clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
@given(problems(), SEEDS, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_classes_bound_is_hard_and_every_example_is_used(problem: tuple[np.ndarray, int], seed: int, most: int) -> None:
    labels, clients = problem
    if clients * most < len(np.unique(labels)):
        with pytest.raises(DataError, match="so that some would be lost"):
            by_classes(labels, clients, seed, most)
        return
    parts = by_classes(labels, clients, seed, most)
    assert_is_a_split(parts, labels, clients)
    assert (histogram(labels, parts, 8) > 0).sum(1).max() <= most


@given(problems(), SEEDS, st.floats(1e-6, 1e6))
@settings(max_examples=100, deadline=None)
def test_dirichlet_uses_every_example_once(problem: tuple[np.ndarray, int], seed: int, alpha: float) -> None:
    labels, clients = problem
    assert_is_a_split(by_dirichlet(labels, clients, seed, alpha), labels, clients)


@pytest.mark.parametrize("how", [("iid", {}), ("classes", {"classes_per_client": 2}), ("dirichlet", {"alpha": 0.5})])
def test_a_split_is_a_function_of_its_seed(how: tuple[str, dict[str, Any]]) -> None:
    labels = balanced(10, 100)
    first, again, other = (split(labels, 20, seed, how[0], **how[1]) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


# every setting of the paper's Table 1: CIFAR-10, N and c_max
@pytest.mark.parametrize(("clients", "most"), [(10, 4), (50, 2), (50, 4), (100, 2), (100, 4)])
def test_sizes_follow_j_within_two_examples(clients: int, most: int) -> None:
    labels = balanced(10, 5000)
    for seed in range(5):
        sizes = np.array([len(part) for part in by_classes(labels, clients, seed, most)])
        assert np.abs(sizes - shares(clients, seed, len(labels))).max() < 2


@pytest.mark.slow
def test_sizes_follow_j_nearly_when_slots_are_scarce() -> None:
    # 10 clients of 2 classes: 20 slots, of which any table that moves examples between all clients needs 19
    labels = balanced(10, 5000)
    off = []
    for seed in range(6):
        sizes = np.array([len(part) for part in by_classes(labels, 10, seed, 2)])
        wanted = np.minimum(shares(10, seed, 50_000), 10_000)  # no client is larger than two classes
        off.append(np.maximum(wanted - sizes, 0).sum() / 50_000)
    assert np.median(off) < 0.0002
    assert max(off) < 0.02


def test_sizes_give_way_where_they_must() -> None:
    # one class each, as many clients as classes: every client is one whole class, whatever its j_n
    parts = by_classes(balanced(10, 50), 10, 3, 1)
    assert [len(part) for part in parts] == [50] * 10


def test_clients_use_the_classes_they_may_have() -> None:
    labels = balanced(10, 5000)
    held = (histogram(labels, by_classes(labels, 100, 0, 4), 10) > 0).sum(1)
    assert held.min() == held.max() == 4


def test_classes_split_without_a_bound_that_binds_is_stratified() -> None:
    labels = labels_of(100, 200, 700)
    counts = histogram(labels, by_classes(labels, 5, 0, 3), 3)
    expected = counts.sum(1, keepdims=True) * np.array([0.1, 0.2, 0.7])
    assert np.abs(counts - expected).max() <= 2


def test_dirichlet_goes_from_one_client_a_class_to_iid() -> None:
    labels = balanced(10, 1000)
    largest = {a: histogram(labels, by_dirichlet(labels, 10, 0, a), 10).max(0).mean() for a in (0.01, 0.5, 1e5)}
    assert largest[0.01] > 900
    assert 250 < largest[0.5] < 700  # E of the largest of ten Dirichlet(0.5) shares is about 0.4
    assert largest[1e5] < 105


def test_dirichlet_shares_have_the_right_variance() -> None:
    # a share of Dirichlet(α) over N clients has variance (N−1)/(N²(Nα+1))
    clients, alpha, classes, each = 8, 0.7, 2000, 100
    labels = np.repeat(np.arange(classes), each).astype(np.int64)
    found = (histogram(labels, by_dirichlet(labels, clients, 0, alpha), classes) / each).var()
    assert found == pytest.approx((clients - 1) / (clients**2 * (clients * alpha + 1)), rel=0.05)


@pytest.mark.parametrize("how", [("iid", {}), ("classes", {"classes_per_client": 2}), ("dirichlet", {"alpha": 0.5})])
def test_more_clients_than_examples_is_an_error(how: tuple[str, dict[str, Any]]) -> None:
    with pytest.raises(DataError, match="there are only 20 training examples, and each client needs one"):
        split(balanced(2, 10), 21, 0, how[0], **how[1])


def test_an_incomplete_request_is_an_error() -> None:
    with pytest.raises(DataError, match=r"classes with data\.classes_per_client"):
        split(balanced(2, 10), 2, 0, "classes")


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_alpha_is_an_error(alpha: float) -> None:
    with pytest.raises(DataError, match="should be from 1e-6"):
        by_dirichlet(balanced(2, 10), 2, 0, alpha)


@pytest.mark.slow
def test_ten_thousand_clients_each_get_examples() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("iid", {}),
        ("classes", {"classes_per_client": 2}),
        ("classes", {"classes_per_client": 10}),
        ("dirichlet", {"alpha": 0.01}),
        ("dirichlet", {"alpha": 1.0}),
    ]
    for how, options in ways:
        assert_is_a_split(split(labels, 10_000, 0, how, **options), labels, 10_000)
