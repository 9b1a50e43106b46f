"""The paper's networks (Appendix D, Table 2)."""

from torch import nn

from fedpm.errors import ConfigError

BLOCKS = {"conv4": (64, 128), "conv6": (64, 128, 256), "conv10": (64, 128, 256, 512, 1024)}


def build(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network by its name, for images of shape (channels, height, width)."""
    return conv(name, input_shape, classes)


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
    return nn.Sequential(*layers, nn.Linear(256, classes))
