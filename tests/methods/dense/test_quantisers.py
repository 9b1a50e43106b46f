"""Known answers of the quantisers: unbiasedness, normalised error, bits that are really sent."""

from functools import cache

import numpy as np
import pytest
from torch import nn

from fedpm.methods.dense.drive import RotatedSigns
from fedpm.methods.dense.fedavg import Float32
from fedpm.methods.dense.fedmrn import MaskedNoise
from fedpm.methods.dense.gaussian import LLOYD_MAX, GaussianLevels
from fedpm.methods.dense.qsgd import Levels
from fedpm.methods.dense.quantiser import Quantiser
from fedpm.methods.dense.rotation import LARGEST, SMALLEST, Rotation, block_lengths, hadamard, paper_bpp
from fedpm.methods.dense.signsgd import Signs
from fedpm.methods.dense.terngrad import Ternary
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams

SMALL = MaskedNetwork(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10)))
LONG = MaskedNetwork(nn.Linear(512, 512, bias=False))
LONGER = MaskedNetwork(nn.Linear(1024, 2048, bias=False))
SHARED = Streams(3).at(1, 2)


def heavy_tailed(network: MaskedNetwork) -> np.ndarray:
    normal = Streams(7).coarse_normal("delta", network.size)
    return normal * np.abs(normal)


def gaussian(network: MaskedNetwork) -> np.ndarray:
    return normals(network.size)


@cache
def normals(size: int) -> np.ndarray:
    drawn = Streams(1).coarse_normal("gaussian", size)
    drawn.flags.writeable = False
    return drawn


def sent(quantiser: Quantiser, delta: np.ndarray, network: MaskedNetwork, seed: int = 0) -> tuple[np.ndarray, float]:
    """Return what the server gets, and the bits per parameter that it took."""
    shared = Streams(seed).at(1, 2)
    data = quantiser.encode(delta, network, Streams(seed + 10**6).at(1, 2), shared).coded.data
    return quantiser.decode(data, network, shared), 8 * len(data) / network.size


def normalised_error(quantiser: Quantiser, delta: np.ndarray, network: MaskedNetwork) -> float:
    return float(((sent(quantiser, delta, network)[0] - delta) ** 2).sum() / (delta**2).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantiser", "trials"),
    [
        (Ternary(), 500),
        (Levels(0.25), 500),
        (RotatedSigns(), 500),
        (GaussianLevels(1.0), 500),
        (GaussianLevels(2.0), 500),
        (GaussianLevels(0.5), 500),
    ],
    ids=str,
)
def test_the_mean_of_many_uploads_is_the_change(quantiser: Quantiser, trials: int) -> None:
    delta = heavy_tailed(SMALL)
    truth = quantiser.clipped(delta, SMALL) if isinstance(quantiser, Ternary) else delta
    total = np.zeros(SMALL.size)
    squares = np.zeros(SMALL.size)
    for seed in range(trials):
        found, _ = sent(quantiser, delta, SMALL, seed)
        total += found
        squares += found.astype(np.float64) ** 2
    mean = total / trials
    rarely = np.sqrt(squares.max()) / trials  # a weight that is sent once in all trials, or never
    standard_error = np.maximum(np.sqrt(np.maximum(squares / trials - mean**2, 0) / trials), rarely)
    deviations = (mean - truth) / standard_error
    if not isinstance(quantiser, Ternary | Levels):  # 960 weights rotate only nearly like a Gaussian vector
        assert float(mean @ truth / (truth @ truth)) == pytest.approx(1, abs=0.01)
        assert np.sqrt((deviations**2).mean()) < 1.3
    else:
        assert np.abs(deviations).max() < 5
        assert np.sqrt((deviations**2).mean()) < 1.1


def test_floats_and_signs_arrive_as_they_are_and_zeros_toss_a_coin() -> None:
    delta = heavy_tailed(SMALL)
    delta[:400] = 0
    assert np.array_equal(sent(Float32(), delta, SMALL)[0], delta)
    signs = sent(Signs(), delta, SMALL)[0]
    assert np.array_equal(signs[400:], np.sign(delta[400:]))
    assert set(signs) == {-1, 1}
    assert abs(signs[:400].mean()) < 0.2


def test_error_of_drive_is_half_pi_minus_one() -> None:
    for delta in (gaussian(LONG), heavy_tailed(LONG)):
        assert normalised_error(RotatedSigns(), delta, LONG) == pytest.approx(np.pi / 2 - 1, abs=0.005)


def test_error_of_eden_is_that_of_its_levels() -> None:
    """With D the mean squared error of the levels on N(0, 1), the unbiased scale gives 1/(1 − D) − 1."""
    distortion = 0.11748  # of the 2-bit Lloyd-Max quantiser (Max 1960)
    assert normalised_error(GaussianLevels(2.0), gaussian(LONG), LONG) == pytest.approx(
        1 / (1 - distortion) - 1, abs=0.003
    )
    half = normalised_error(GaussianLevels(0.5), gaussian(LONG), LONG)
    assert half == pytest.approx(np.pi / 2 / 0.5 - 1, rel=0.02)  # E‖x̂‖² = (π/2)·‖x‖²/p for an unbiased x̂


def test_levels_of_eden_are_those_of_lloyd_and_max() -> None:
    numbers = Streams(5).normal("many", 2**20).astype(np.float64)
    for bits, half in LLOYD_MAX.items():
        bounds = np.concatenate(([0], (np.array(half)[1:] + half[:-1]) / 2, [np.inf]))
        for level, low, high in zip(half, bounds[:-1], bounds[1:], strict=True):
            inside = np.abs(numbers)[(np.abs(numbers) >= low) & (np.abs(numbers) < high)]
            assert inside.mean() == pytest.approx(level, abs=0.003), f"{bits} bits: a level is the mean of its cell"


def test_eden_at_one_bit_is_drive() -> None:
    delta = heavy_tailed(LONG)
    drive, eden = (sent(quantiser, delta, LONG)[0] for quantiser in (RotatedSigns(), GaussianLevels(1.0)))
    np.testing.assert_allclose(drive, eden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("quantiser", "bpp"),
    [
        (Signs(), 1.0),
        (Ternary(), 1.22),
        (Levels(0.05), 0.28),
        (Levels(0.1), 0.48),
        (Levels(0.2), 0.79),
        (Levels(0.25), 0.92),
        (Levels(0.3), 1.03),
        (Levels(0.4), 1.24),
        (Levels(0.5), 1.42),
        (RotatedSigns(), 1.0),
        (GaussianLevels(1.0), 1.0),
        (GaussianLevels(0.5), 0.5),
        (GaussianLevels(0.1), 0.1),
        (GaussianLevels(2.0), 1.911),  # the entropy of the four levels
    ],
    ids=str,
)
def test_bits_of_a_gaussian_change(quantiser: Quantiser, bpp: float) -> None:
    assert sent(quantiser, gaussian(LONGER), LONGER)[1] == pytest.approx(bpp, rel=0.02)


def test_a_laplacian_change_costs_terngrad_less() -> None:
    uniform = (Streams(2).uint32("laplace", LONG.size) + 0.5) / 2**32
    laplace = (-np.sign(uniform - 0.5) * np.log(1 - 2 * np.abs(uniform - 0.5))).astype(np.float32)
    assert sent(Ternary(), laplace, LONG)[1] == pytest.approx(1.12, rel=0.02)


def test_symbols_in_a_row_cost_no_more_than_mixed_ones() -> None:
    delta = np.abs(gaussian(LONG))
    delta[: LONG.size // 2] *= -1
    assert sent(Signs(), delta, LONG)[1] == pytest.approx(1, rel=0.01)
    network = MaskedNetwork(nn.Sequential(nn.Linear(512, 256, bias=False), nn.Linear(256, 512, bias=False)))
    assert sent(Signs(), delta, network)[1] < 0.01  # a context for each layer


@pytest.mark.parametrize("quantiser", [Ternary(), Levels(0.25), RotatedSigns(), GaussianLevels(0.5)], ids=str)
def test_no_change_arrives_as_no_change(quantiser: Quantiser) -> None:
    assert not sent(quantiser, np.zeros(SMALL.size, np.float32), SMALL)[0].any()


def test_hadamard_is_orthogonal_and_its_own_inverse() -> None:
    matrix = np.stack([hadamard(row) for row in np.eye(64, dtype=np.float32)])
    expected = np.ones((1, 1))
    for _ in range(6):
        expected = np.block([[expected, expected], [expected, -expected]])
    np.testing.assert_allclose(matrix, expected / 8, atol=1e-7)
    x = gaussian(LONG)[: 2**14]
    np.testing.assert_allclose(hadamard(hadamard(x)), x, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 1000, 1024, 5000, 200_001])
def test_rotation_keeps_lengths_and_can_be_undone(size: int) -> None:
    x = Streams(4).normal("x", size)
    rotation = Rotation(size, SHARED)
    y = rotation.forward(x)
    assert np.linalg.norm(y) == pytest.approx(np.linalg.norm(x), rel=1e-5)
    np.testing.assert_allclose(rotation.inverse(y), x, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 458_698, 2_262_602, 19_197_092])
def test_only_the_last_block_is_padded(size: int) -> None:
    lengths = block_lengths(size)
    assert all(length & (length - 1) == 0 and length <= LARGEST for length in lengths)
    assert sum(lengths[:-1]) < size <= sum(lengths)
    assert sum(lengths) - size < SMALLEST


def test_true_and_papers_bits_of_drive_on_conv6() -> None:
    """The paper's 0.885, and what padding each tensor would really send (1.394)."""
    network = MaskedNetwork(nets.build("conv6", (3, 32, 32), 10))
    assert paper_bpp(network) == pytest.approx(0.885, abs=5e-4)
    padded = sum(1 << (part.size - 1).bit_length() for part in network.parts)
    assert padded == 3_153_296
    assert padded / network.size == pytest.approx(1.394, abs=5e-4)
    delta = gaussian(network)
    assert sent(RotatedSigns(), delta, network)[1] == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-34, 1e-30, 1e-20, 1e15])
@pytest.mark.parametrize(
    "quantiser",
    [
        Signs(),
        Ternary(2.5),
        Levels(0.25),
        RotatedSigns(),
        GaussianLevels(1.0),
        GaussianLevels(0.5),
        Float32(),
        MaskedNoise(),
    ],
    ids=lambda quantiser: type(quantiser).__name__,
)
def test_changes_of_any_size_pass(quantiser: Quantiser, size: float) -> None:
    delta = (heavy_tailed(LONG) * size).astype(np.float32)
    received = sent(quantiser, delta, LONG)[0]
    assert np.isfinite(received).all()
    if not isinstance(quantiser, Signs | MaskedNoise):
        assert np.abs(received).max() <= 100 * max(np.abs(delta).max(), 1e-36)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_masked_noise_is_on_average_the_change_that_masks_can_reach(signed: bool) -> None:
    masked = MaskedNoise(0.01, signed)
    noise = masked.unit(SMALL.size, SHARED) * np.float32(0.01)
    delta = heavy_tailed(SMALL) * np.float32(0.005)
    lowest, highest = np.sort([-noise if signed else 0 * noise, noise], axis=0)
    trials = 200
    coded = [masked.encode(delta, SMALL, Streams(seed).at(1, 2), SHARED).coded.data for seed in range(trials)]
    found = np.array([masked.decode(data, SMALL, SHARED) for data in coded], np.float64)
    assert ((found == noise) | (found == masked.lowest * noise)).all()
    error = found.mean(0) - delta.clip(lowest, highest)
    assert np.abs(error / (highest - lowest) * np.sqrt(trials)).max() < 2.5  # five times the deviation of a fair bit
    assert np.abs(noise).max() <= 0.01
    assert noise.all()


def test_what_both_ends_know_of_the_noise_takes_bits_off_the_mask() -> None:
    delta = gaussian(LONG) * np.float32(0.005)
    received, bits = sent(MaskedNoise(0.01), delta, LONG)
    ones = float((received != 0).mean())
    by_frequency = -(ones * np.log2(ones) + (1 - ones) * np.log2(1 - ones))
    assert bits < 0.99 * by_frequency < 0.99
    assert sent(MaskedNoise(0.01, signed=True), delta, LONG)[1] == pytest.approx(1, abs=0.01)
