"""The paper's networks: parameter counts, shapes, and what does not fit is refused."""

import pytest
import torch

from fedpm.errors import ConfigError
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("conv4", (1, 28, 28), 10, 1_933_258),
        ("conv4", (1, 28, 28), 47, 1_942_767),
        ("conv6", (3, 32, 32), 10, 2_262_602),
        ("conv10", (3, 32, 32), 100, 19_197_092),
        # the usual CIFAR ResNet-18 has 11,173,962, of which 9,600 are affine parameters of 4,800 norm channels
        ("resnet18", (3, 32, 32), 10, 11_173_962 - 9_600),
        ("resnet18", (3, 32, 32), 100, 11_173_962 - 9_600 + 90 * 513),
        # 3×3 convolutions 1→16→16→32→32 with biases, then linear layers from 32·7·7 to 256, 256, 10
        ("conv4-slim", (1, 28, 28), 10, (9 + 1) * 16 + 145 * 16 + 145 * 32 + 289 * 32 + 1569 * 256 + 257 * 256 + 2570),
        ("mlp", (64,), 10, 65 * 256 + 257 * 256 + 2570),
        ("mlp", (1, 8, 8), 10, 65 * 256 + 257 * 256 + 2570),
        ("conv6-slim", (3, 32, 32), 10, 402_842),
        ("resnet18-slim", (3, 32, 32), 10, 699_066),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    net = nets.build(name, shape, classes)
    assert MaskedNetwork(net).size == parameters
    assert net.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_resnet18_sends_the_statistics_of_its_norm_layers() -> None:
    masked = MaskedNetwork(nets.build("resnet18", (3, 32, 32), 10))
    assert masked.stats_size == 9_600
    assert not any("norm" in part.name or "bias" in part.name for part in masked.parts[:-1])


@pytest.mark.parametrize("shape", [(1, 25, 25), (1, 28, 28), (3, 40, 64)])
def test_resnet18_adapts_to_images_that_fit(shape: tuple[int, ...]) -> None:
    assert nets.build("resnet18", shape, 5).eval()(torch.zeros(1, *shape)).shape == (1, 5)


@pytest.mark.parametrize(("name", "smallest"), [("conv4", 4), ("conv6", 8), ("conv10", 32), ("resnet18", 25)])
def test_images_too_small_are_refused(name: str, smallest: int) -> None:
    nets.build(name, (1, smallest, smallest), 3)
    with pytest.raises(ConfigError, match=f"at least {smallest} pixels"):
        nets.build(name, (1, smallest, smallest - 1), 3)


@pytest.mark.parametrize("name", ["conv4", "resnet18"])
def test_inputs_that_are_no_images_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"takes images of shape \(channels, height, width\), .* 'mlp'"):
        nets.build(name, (64,), 3)
