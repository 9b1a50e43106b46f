"""The paper's networks (Appendices D and E)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from fedpm.errors import ConfigError
from fedpm.model.variants import VARIANTS as VARIANTS
from fedpm.model.variants import variant

BLOCKS = {"conv4": (64, 128), "conv6": (64, 128, 256), "conv10": (64, 128, 256, 512, 1024)}
BLOCKS |= {f"{name}-slim": tuple(width // 4 for width in widths) for name, widths in BLOCKS.items()}
"""Channels of the blocks; a slim network, which is ours, has a quarter of them."""
RESNETS = {"resnet18": 64, "resnet18-slim": 16}
"""Channels of the stem."""
MLP = "mlp"
"""Two hidden layers of 256, for inputs of any shape, such as the rows of a table; ours."""


class ChannelsLast(nn.Sequential):
    """Layers on images whose channels lie last in memory: convolutions on CPUs are 1.1 to 1.7 times as fast so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        # not x.to(memory_format=torch.channels_last), which vmap refuses: private steps take examples one by one
        rows = x.movedim(1, -1).clone(memory_format=torch.contiguous_format)
        output: torch.Tensor = super().forward(rows.movedim(-1, 1))  # type: ignore[no-untyped-call]
        return output


def build(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network by its name, for images (channels, height, width); MiniLM for token numbers, mlp for all."""
    if name in VARIANTS:
        return variant(name, classes)
    if name == MLP:
        hidden = (nn.Linear(math.prod(input_shape), 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, classes))
    if len(input_shape) != 3:
        raise ConfigError(
            f"model.name = {name!r} takes images of shape (channels, height, width), and the inputs have shape "
            f"{input_shape}; use model.name = 'mlp', reshape them, or give a network of your own"
        )
    return resnet18(name, input_shape, classes) if name in RESNETS else conv(name, input_shape, classes)


def conv(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return CONV-4, -6 or -10: blocks of two 3×3 convolutions and a 2×2 pool, then three linear layers."""
    channels, height, width = input_shape
    widths = BLOCKS[name]
    if min(height, width) >> len(widths) == 0:
        raise ConfigError(
            f"model.name = {name!r} halves its input {len(widths)} times, too often for {height}×{width} images: "
            f"they should be at least {2 ** len(widths)} pixels high and wide, or the network shallower"
        )
    layers: list[nn.Module] = []
    for out in widths:
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    features = channels * (height >> len(widths)) * (width >> len(widths))
    layers += [nn.Flatten(), nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return ChannelsLast(*layers, nn.Linear(256, classes))


def resnet18(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return ResNet-18 with a 3×3 stem; its norm layers have no affine parameters, which cannot be masked."""
    channels, height, width = input_shape
    rows, columns = (-(-side // 8) - 3 for side in (height, width))  # three halvings, then a 4×4 window
    if min(rows, columns) < 1:
        raise ConfigError(
            f"model.name = {name!r} averages 4×4 windows after halving its input three times, so that images "
            f"should be at least 25 pixels high and wide, and these are {height}×{width}; use conv4"
        )
    before = RESNETS[name]
    layers: list[nn.Module] = [*_conv_norm(channels, before, 3, 1), nn.ReLU()]
    for after, stride in ((before, 1), (2 * before, 2), (4 * before, 2), (8 * before, 2)):
        layers += [Residual(before, after, stride), Residual(after, after, 1)]
        before = after
    layers += [nn.AvgPool2d(4, stride=1), nn.Flatten(), nn.Linear(before * rows * columns, classes)]
    return ChannelsLast(*layers)


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        first, second = _conv_norm(before, after, 3, stride), _conv_norm(after, after, 3, 1)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(before, after, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return F.relu(self.body(x) + self.shortcut(x))


def _conv_norm(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(after, affine=False)
