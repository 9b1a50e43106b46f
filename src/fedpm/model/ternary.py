"""Ternary weights in memory: 2 bits each, unpacked a layer at a time when it is called (Section 3.3)."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from fedpm.model.masking import MaskedNetwork


class Unpack(nn.Module):
    """Turns bytes of four 2-bit codes (0: 0, 1: +σ, 2: −σ) into a weight, whenever the weight is asked for."""

    table: torch.Tensor

    def __init__(self, shape: tuple[int, ...], sigma: float, table: torch.Tensor) -> None:
        super().__init__()
        self._shape = torch.Size(shape)
        self._sigma = sigma
        self.register_buffer("table", table, persistent=False)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the weight."""
        signs = self.table[packed.int()].flatten()
        return signs[: self._shape.numel()].view(self._shape) * self._sigma

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the packed form of a weight; in a tuple, because torch lets only that change the type."""
        codes = ((weight > 0) + 2 * (weight < 0)).to(torch.uint8).flatten()
        codes = nn.functional.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
        return ((codes << torch.tensor([0, 2, 4, 6], dtype=torch.uint8)).sum(1, dtype=torch.uint8),)


def pack(module: nn.Module, masked: MaskedNetwork) -> nn.Module:
    """Replace every masked parameter of a module by its packed form; outputs stay identical."""
    parts = {part.name: part for part in masked.parts}
    codes = torch.arange(256)[:, None] >> torch.tensor([0, 2, 4, 6])
    table = torch.tensor([0.0, 1.0, -1.0, 0.0])[codes & 3]  # of all bytes, shared by all layers
    for alias, first in masked.aliases.items():
        part = parts[first]
        prefix, _, name = alias.rpartition(".")
        owner = module.get_submodule(prefix)
        parametrize.register_parametrization(owner, name, Unpack(part.shape, part.sigma, table), unsafe=True)
    return module
