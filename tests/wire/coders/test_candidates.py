import hashlib

import numpy as np
import pytest

from fedpm.rng import Streams, scrambled, scrambled_run
from fedpm.wire.coders import candidates
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.candidates import Candidates, drawn
from fedpm.wire.coders.relative_entropy import RelativeEntropy
from fedpm.wire.theta import Theta
from tests.wire.coders.test_lossless import exchange


def pieces(count: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return θ_g in 1/256 and evidence of some pieces."""
    draws = Streams(3).uint32(f"{count} {columns}", count * columns)
    evidence = ((draws >> 8) % 1999 - 999.0).astype(np.float32) / 256
    return draws.astype(np.uint8).reshape(count, columns), evidence.reshape(count, columns)


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 100])
def test_the_evidence_of_a_candidate_is_that_of_its_ones(columns: int) -> None:
    proposal, evidence = pieces(5, columns)
    given = Candidates(np.uint64(77), 8, proposal)
    sums = given.sums(slice(0, 5), evidence)
    assert np.array_equal(given.sums(slice(3, 5), evidence[3:]), sums[3:])
    for index in range(8):
        ones = given.take(np.full(5, index, np.int32))
        assert np.array_equal(sums[:, index], (ones * evidence).sum(1))


def test_a_run_of_words_is_that_of_its_counters() -> None:
    key = np.uint64(2**63 + 5)
    assert np.array_equal(scrambled_run(key, 90, 20), scrambled(key, np.arange(90, 110, dtype=np.uint64)))


def test_a_piece_alone_draws_what_it_draws_among_others() -> None:
    ratios = ((Streams(1).uint32("r", 512) % 4000) / 256 - 8).astype(np.float32).reshape(64, 8)
    wanted, chance = np.linspace(-1, 6, 8, dtype=np.float32), np.linspace(0, 0.99, 8)
    together = drawn(ratios, wanted, chance)
    assert len(set(together.tolist())) > 2
    for column in range(8):
        alone = slice(column, column + 1)
        assert drawn(ratios[:, alone], wanted[alone], chance[alone]).tolist() == [together[column]]


def test_uploads_of_earlier_versions_are_read_as_they_were() -> None:
    belief = Theta(Streams(5).uint8("n", 3000).astype(np.uint32) % 11, 10)
    known = Context(belief, Streams(5).at(2, 1), (2000, 10, 990))
    data = bytes.fromhex(
        "081000000033352ef22a25fa2f4d0555ae16070f789f00000000d070c3d2913e211dd2f7fe2026afb8b3d1fa140481518c4a6cfe5d1aa8"
        "f386d9e53b36a0ddac640397fd17a143974d38524f0db1e8e4267eb24ae16c0e226f0587a18ec6af5f"
    )
    mask = RelativeEntropy().decode(data, known)
    assert hashlib.sha256(mask.tobytes()).hexdigest().startswith("547948a2c9a2d916")


@pytest.mark.slow  # numba compiles for some seconds
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (40_000, 10, 9_990)])
@pytest.mark.parametrize("coder", [RelativeEntropy(), RelativeEntropy(1, 0.5), RelativeEntropy(11, 10.0)])
def test_numba_gives_the_bytes_of_numpy(sizes: tuple[int, ...], coder: RelativeEntropy) -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install 'fedpm[fast]'")
    assert candidates._compiled() is not None
    for step in (0.1, 0.5, 3.0):
        theta, known = exchange(sum(sizes), step=step)
        known = Context(known.theta, known.shared, sizes)
        compiled = coder.encode(theta, known, Streams(7))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(candidates, "_compiled", lambda: None)
            mask, coded = coder.encode(theta, known, Streams(7))
        assert np.array_equal(compiled[0], mask)
        assert compiled[1].data == coded.data
