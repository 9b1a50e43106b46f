import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpm.rng import Streams
from fedpm.training.noise import Noise


def test_words_are_the_same_in_every_release() -> None:
    # Golden: Philox4x64-10 keyed by blake2b-128 of the stream's name. A change breaks every model file, and a name
    # that were hashed by Python itself would differ in every process, this one too.
    assert Streams(7).at(3, 5).words("weights", 3).tolist() == [
        13489583322565105377,
        3488785463696593788,
        13864309678311995057,
    ]


def test_every_part_of_the_name_makes_another_stream() -> None:
    streams = [Streams(1), Streams(2), Streams(1).at(1), Streams(1).at(0, 1), Streams(1).at(1, 1)]
    first = {int(s.words(purpose, 1)[0]) for s in streams for purpose in ("a", "b")}
    assert len(first) == 10


def test_a_longer_draw_continues_a_shorter_one() -> None:
    stream = Streams(1)
    for draw in (stream.words, stream.uint32, stream.uint8, stream.bits):
        assert np.array_equal(draw("x", 101)[:37], draw("x", 37))


def test_choice_takes_the_members_with_the_smallest_words_however_many_there_are() -> None:
    population, count = 3 * 2**16 + 5, 100
    words = Streams(5).at(2).words("clients", population)
    assert Streams(5).at(2).choice("clients", population, count) == sorted(np.argsort(words)[:count].tolist())


@given(st.integers(1, 50), st.data())
def test_choice_draws_without_replacement(population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, population))
    chosen = Streams(data.draw(st.integers(0, 2**63 - 1))).choice("clients", population, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(population))


def test_choice_is_uniform() -> None:
    hits = np.zeros(10)
    for round in range(4000):
        hits[Streams(0).at(round).choice("clients", 10, 3)] += 1
    assert hits / 4000 == pytest.approx(0.3, abs=0.03)  # standard error 0.007


def test_permutation_holds_every_index_once() -> None:
    assert sorted(Streams(3).permutation("x", 100)) == list(range(100))


def test_noise_is_uniform_and_inside_the_unit_interval() -> None:
    draws = Noise(Streams(1), "x", torch.device("cpu")).uniform(1_000_001)
    assert draws.dtype == torch.float32
    assert float(draws.min()) > 0
    assert float(draws.max()) < 1
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(draws.var()) == pytest.approx(1 / 12, abs=0.001)


def test_noise_moves_on() -> None:
    noise = Noise(Streams(1), "x", torch.device("cpu"))
    assert not torch.equal(noise.uniform(100), noise.uniform(100))


def test_normal_numbers_are_normal_and_stay_the_same() -> None:
    numbers = Streams(1).coarse_normal("x", 200_001)
    assert len(numbers) == 200_001
    assert numbers.mean() == pytest.approx(0, abs=0.01)
    assert numbers.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(numbers) < 1.959964).mean() == pytest.approx(0.95, abs=0.002)
    assert np.abs(numbers).max() < 4.4
    # Golden: dense runs of a seed start from these, in steps of 2⁻¹⁶.
    assert (numbers[:4] * 2**16).tolist() == [-112251.0, -4399.0, -34489.0, 1764.0]
