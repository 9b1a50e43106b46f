"""EfficientNet-Lite0 (Tan and Le 2019) at 64 pixels, as a chain of modules: stem, blocks, top, head.

Modules bear the names of the published file, without their underscores.
"""

import torch
import torch.nn.functional as F
from torch import nn

PIXELS, TOP = 64, 1280
STAGES = (  # blocks, kernel, stride of the first, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_EPSILON = 1e-3


class Block(nn.Module):
    """A 1×1 convolution to more channels, one in each of them, and a 1×1 convolution back."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.same = before == after and stride == 1
        self.expand_conv = nn.Conv2d(before, wide, 1, bias=False) if expansion > 1 else None
        self.bn0 = nn.BatchNorm2d(wide, _EPSILON) if expansion > 1 else None
        self.pad = nn.ZeroPad2d(_padding(kernel, stride))
        self.depthwise_conv = nn.Conv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self.bn1 = nn.BatchNorm2d(wide, _EPSILON)
        self.project_conv = nn.Conv2d(wide, after, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after, _EPSILON)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the block's output, with what came in added where that has the same shape."""
        x = given
        if self.expand_conv is not None and self.bn0 is not None:
            x = F.relu6(self.bn0(self.expand_conv(x)))
        x = F.relu6(self.bn1(self.depthwise_conv(self.pad(x))))
        out: torch.Tensor = self.bn2(self.project_conv(x))
        return out + given if self.same else out


def efficientnet(classes: int, published: dict[str, torch.Tensor] | None = None) -> nn.Sequential:
    """Return the network with a new head, its values those of the published file if given; names are 0, 1 … 18.

    0 scales images of any size and is the stem, 1 to 16 are the blocks, 17 is the top, and 18 the head.
    """
    stem = nn.Sequential(
        nn.Upsample((PIXELS, PIXELS), mode="bilinear"),
        nn.ZeroPad2d(_padding(3, 2)),
        nn.Conv2d(3, 32, 3, 2, bias=False),
        nn.BatchNorm2d(32, _EPSILON),
        nn.ReLU6(),
    )
    blocks, before = list[nn.Module](), 32
    for count, kernel, stride, expansion, after in STAGES:
        for number in range(count):
            blocks.append(Block(before, after, kernel, 1 if number else stride, expansion))
            before = after
    top = nn.Sequential(
        nn.Conv2d(before, TOP, 1, bias=False),
        nn.BatchNorm2d(TOP, _EPSILON),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    head = nn.Linear(TOP, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    net = nn.Sequential(stem, *blocks, top, head)
    if published is not None:
        values = {_renamed(name): value for name, value in published.items() if not name.startswith("_fc.")}
        net.load_state_dict({**values, "18.weight": head.weight, "18.bias": head.bias})
    return net


def _padding(kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Return the padding that halves an even number of pixels, or keeps any, with the odd one at the end."""
    total = kernel - stride
    return total // 2, total - total // 2, total // 2, total - total // 2


_OUTER = {"_conv_stem": "0.2", "_bn0": "0.3", "_conv_head": "17.0", "_bn1": "17.1"}


def _renamed(name: str) -> str:
    """Return the name here of a value of the published file."""
    if name.startswith("_blocks."):
        _, block, rest = name.split(".", 2)
        return f"{int(block) + 1}.{rest.removeprefix('_')}"
    layer, rest = name.split(".", 1)
    return f"{_OUTER[layer]}.{rest}"
