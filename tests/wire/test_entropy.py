import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import WireError
from fedpm.rng import Streams
from fedpm.wire.entropy import decode, encode


@given(st.integers(2, 40), st.integers(0, 600), st.integers(1, 200), st.integers(0, 2**32))
def test_symbols_come_back_in_any_alphabet_and_contexts(alphabet: int, size: int, contexts: int, seed: int) -> None:
    symbols = Streams(seed).uint32("symbols", size) % alphabet
    known = (Streams(seed).uint32("contexts", size) % contexts).astype(np.uint8)
    assert np.array_equal(decode(encode(symbols, known, alphabet).data, known, alphabet), symbols)


@given(st.binary(max_size=200), st.integers(1, 500), st.integers(2, 30))
def test_any_bytes_decode_to_symbols_or_a_wire_error(data: bytes, size: int, alphabet: int) -> None:
    with suppress(WireError):
        assert decode(data, np.zeros(size, np.uint8), alphabet).max() < alphabet


@pytest.mark.parametrize("alphabet", [2, 11])
def test_size_is_the_ideal_and_near_the_conditional_entropy(alphabet: int) -> None:
    contexts = (Streams(0).uint8("contexts", 400_000) % 20).astype(np.uint8)
    uniform = Streams(0).uint32("symbols", 400_000) / 2**32
    symbols = (uniform ** (1 + contexts / 4) * alphabet).astype(np.int32)
    coded = encode(symbols, contexts, alphabet)
    table = np.bincount(contexts * alphabet + symbols, minlength=20 * alphabet).reshape(20, alphabet)
    p = table / table.sum(1, keepdims=True)
    entropy = -(table * np.log2(np.where(table > 0, p, 1))).sum()
    assert coded.ideal_bits <= len(coded.data) * 8 <= 1.0005 * coded.ideal_bits + 64
    assert coded.ideal_bits <= 1.005 * entropy


def test_other_contexts_are_noticed() -> None:
    symbols = Streams(0).bits("symbols", 5000)
    contexts = Streams(0).bits("contexts", 5000)
    coded = encode(symbols & contexts, contexts, 2).data
    with pytest.raises(WireError, match="does not end where its symbols do"):
        decode(coded, 1 - contexts, 2)


@pytest.mark.parametrize(("data", "words"), [(b"abc", "whole 32-bit words"), (bytes(8), "zero word")])
def test_each_kind_of_damage_is_named(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(data, np.zeros(10, np.uint8), 2)


def test_bytes_are_the_same_in_every_release() -> None:
    # Golden: a change here is a change of the wire format, and needs a new version of it.
    symbols = Streams(1).uint32("symbols", 100) % 5
    contexts = (Streams(1).uint32("contexts", 100) % 3).astype(np.uint8)
    assert (
        encode(symbols, contexts, 5).data.hex()
        == "87d0000b5448272a5e7e4fce64b46a1d5b395e7afc46af880d61fd6f51a5630f05000000"
    )
    assert encode(symbols % 2, contexts, 2).data.hex() == "8089919da1471c8ce1f8ca24ea282202"


def test_coding_keeps_no_table_of_the_alphabet_for_every_chunk() -> None:
    contexts = np.arange(6400, dtype=np.uint32) % 64
    symbols = (np.arange(6400) * 7919) % 10_001
    tracemalloc.start()
    coded = encode(symbols, contexts, 10_001)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(decode(coded.data, contexts, 10_001), symbols)
    assert peak < 5e6  # 64 contexts of 5 chunks each, 80 kB a table
