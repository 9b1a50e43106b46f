"""Clients whose data are loaded when they take part."""

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedpm
from fedpm.data.ondemand import OnDemand
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.build import build
from tests.small import small_config, small_net

Array = npt.NDArray[Any]


def examples(client: int) -> tuple[Array, Array]:
    """Return what a client has: images of two classes, of which one is brighter."""
    rng = np.random.default_rng(client)
    labels = rng.integers(0, 2, 8)
    return (100 * labels[:, None, None, None] + rng.integers(0, 100, (8, 1, 8, 8))).astype(np.uint8), labels


def people(count: int, load: Any = examples) -> OnDemand:
    return fedpm.on_demand(load, count, validation=examples(-1 % 2**32), test=examples(-2 % 2**32))


def run(count: int, load: Any = examples) -> fedpm.Result:
    config = small_config(rounds=2, clients={"total": count, "sampled": 3}, data={})
    return fedpm.run(config, net=small_net(), data=people(count, load))


def test_only_those_who_take_part_are_loaded_and_each_at_its_turn() -> None:
    loaded: list[int] = []

    def load(client: int) -> tuple[Array, Array]:
        loaded.append(client)
        return examples(client)

    result = run(100_000, load)
    assert loaded == [client for record in result.rounds for client in record["clients"]]
    assert len(loaded) == 6


def test_a_federation_on_demand_trains_as_one_that_is_there() -> None:
    there = fedpm.federation(
        [examples(client) for client in range(5)], validation=examples(-1 % 2**32), test=examples(-2 % 2**32)
    )
    config = small_config(rounds=2, clients={"total": 5, "sampled": 3}, data={})
    assert run(5).file.to_bytes() == fedpm.run(config, net=small_net(), data=there).file.to_bytes()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients() -> None:
    run(10)  # so that nothing is imported below

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            run(count)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(10**3), peak(10**6)
    assert many < few + 3_000_000, "a byte for each client would be a million, a word eight"


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda client: (np.zeros((2, 1, 4, 4), np.uint8), [0, 1]), "client 2: an input is uint8 of shape"),
        (lambda client: (examples(client)[0], ["a"] * 8), "client 2: label 'a' is none of the classes"),
    ],
)
def test_a_client_that_is_unlike_the_servers_data_is_refused(load: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        people(3, load).shard(2)


def test_a_place_of_a_fleet_holds_its_own_alone() -> None:
    data = people(3)
    assert np.array_equal(data.at(1).train.x, examples(1)[0])
    assert data.at(None).train is data.train
    with pytest.raises(DataError, match="there are 3 clients"):
        data.at(3)


@pytest.mark.parametrize(
    "settings", [{"local": {"cache": True}}, {"evaluation": {"at": "clients"}}, {"data": {"train_examples": 5}}]
)
def test_what_needs_all_examples_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, DataError), match="on demand"):
        build(small_config(**{"data": {}, **settings}), net=small_net(), data=people(3))
