"""That the benchmarks measure; what they measure depends on the machine, but for memory."""

import pytest
from benchmarks.cases import memory, server, step, timed
from benchmarks.cases.cases import experiment, fedpm_of
from benchmarks.cases.naive import Naive, round_of


def test_cases_take_turns() -> None:
    order: list[str] = []
    seconds = timed({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 3
    assert all(value >= 0 for value in seconds.values())


def test_a_masked_step_is_measured_beside_a_dense_one() -> None:
    row = step.measure("CONV-4, 8×8")
    assert row["masked / dense"] == pytest.approx(row["masked ms"] / row["dense ms"])
    assert 0 < row["random bits ms"] < row["masked ms"]


def test_the_servers_memory_does_not_grow_with_the_clients_of_a_round() -> None:
    few, many, sampling = server.run((2, 8))
    assert many["peak MB"] < 1.02 * few["peak MB"]
    assert sampling["seconds"] > 0


def test_memory_of_a_run_is_read_after_every_round() -> None:
    row = memory.grown(4)
    assert row["quarter 4 MB"] > 50
    assert row["last / second quarter"] == pytest.approx(1, abs=0.5)


def test_the_most_memory_of_a_round_is_that_of_its_own_process() -> None:
    assert 1e8 < memory.peak("CONV-4, 8×8") < 2e10


def test_research_code_learns_masks_too() -> None:
    made = experiment("CONV-4, 8×8", clients=2, steps=1)
    algorithm, train = fedpm_of(made), made.clients.train
    naive = Naive(algorithm.masked)
    before = {name: value.clone() for name, value in naive.state_dict().items()}
    round_of(naive, [train.take(part) for part in made.clients.parts], epochs=1, batch_size=65)
    state = {name: value for name, value in naive.state_dict().items() if not value.is_meta}
    changed = {name for name, value in state.items() if not value.equal(before[name])}
    assert changed == {name for name in before if name.startswith("s_")}
