"""LoRA (Hu et al. 2022): a pretrained linear layer, frozen, and beside it a product of two thin ones that is trained.

A convolution of 1×1 pixels is such a layer too, at every pixel.

FFA-LoRA (Sun et al. 2024) freezes the first of them too, at its random values: then the mean of clients' products is
the product of their mean.
"""

import copy
from collections.abc import Collection

import torch
from torch import nn

from fedpm.errors import ConfigError
from fedpm.model.kinds import Selector, selects
from fedpm.rng import Streams


class LowRank(nn.Module):
    """W x + B A x: ``layer`` is W, ``down`` A, random, and ``up`` B, which starts at 0."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, name: str) -> None:
        super().__init__()
        self.layer = layer
        self.down: nn.Module
        self.up: nn.Module
        if isinstance(layer, nn.Linear):
            inputs, outputs = layer.in_features, layer.out_features
            self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        else:
            inputs, outputs = layer.in_channels, layer.out_channels
            self.down = nn.Conv2d(inputs, rank, 1, (layer.stride[0], layer.stride[1]), bias=False)
            self.up = nn.Conv2d(rank, outputs, 1, bias=False)
        values = Streams(0).coarse_normal(f"LoRA of {name}", rank * inputs)  # the same on every machine
        self.down.weight = nn.Parameter(torch.from_numpy(values).view(self.down.weight.shape) / inputs**0.5)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output and what was learned."""
        out: torch.Tensor = self.layer(x) + self.up(self.down(x))
        return out


def with_lora(net: nn.Module, layers: Collection[Selector], rank: int) -> nn.Module:
    """Return a copy of a network with LoRA beside the linear layers and 1×1 convolutions that ``layers`` name.

    Train it with a dense algorithm, ``weights="given"`` and ``frozen=["*.layer.*", …]``, of FFA-LoRA
    ``"*.down.*"`` too, and what else is not to be trained.
    """
    net = copy.deepcopy(net)
    linear = {name: module for name, module in net.named_modules() if _linear(module)}
    chosen = [name for name in linear if any(selects(s, f"{name}.weight", net) for s in layers)]
    if not chosen:
        raise ConfigError(f"LoRA for {', '.join(map(str, layers))}: the network has no such linear layer")
    for name in chosen:
        prefix, _, own = name.rpartition(".")
        setattr(net.get_submodule(prefix), own, LowRank(linear[name], rank, name))
    return net


def _linear(module: nn.Module) -> bool:
    """Tell whether a module multiplies by a matrix, perhaps at every pixel."""
    whole = isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding in ((0, 0), "valid")
    return isinstance(module, nn.Linear) or (whole and module.kernel_size == (1, 1))
