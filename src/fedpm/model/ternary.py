"""Masked weights in memory: 2 bits each, unpacked a layer at a time when it is called (Section 3.3).

Over given weights a mask takes 1 bit each, beside the values, which all masks over them share.
"""

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


class Unmask(nn.Module):
    """Turns bytes of eight bits of a mask into the given weights that it keeps, whenever the weight is asked for."""

    given: torch.Tensor

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("given", given, persistent=False)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the weight."""
        bits = (packed[:, None].int() >> torch.arange(8, device=packed.device)) & 1
        return torch.where(bits.flatten()[: self.given.numel()].view(self.given.shape) == 1, self.given, 0.0)

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the mask of a weight: what is 0 in the given one already may as well be kept."""
        bits = (weight == self.given).to(torch.uint8).flatten()
        bits = nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
        return ((bits << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8),)


def pack(module: nn.Module, masked: MaskedNetwork) -> nn.Module:
    """Replace every masked parameter of a module by its packed form; outputs stay identical."""
    parts = {part.name: part for part in masked.parts}
    codes = torch.arange(256)[:, None] >> torch.tensor([0, 2, 4, 6])
    table = torch.tensor([0.0, 1.0, -1.0, 0.0])[codes & 3]  # of all bytes, shared by all layers
    given = {} if masked.given is None else masked.views(masked.given)
    for alias, first in masked.aliases.items():
        if first not in parts:
            continue  # trained as floats
        part = parts[first]
        prefix, _, name = alias.rpartition(".")
        owner = module.get_submodule(prefix)
        form = Unmask(given[first]) if given else Unpack(part.shape, part.sigma, table)
        parametrize.register_parametrization(owner, name, form, unsafe=True)
    return module
