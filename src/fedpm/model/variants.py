"""What is trained of a pretrained network: its last blocks, LoRA of a rank beside their layers, or the head alone."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import torch
from safetensors.torch import load
from torch import nn

from fedpm.model.efficientnet import efficientnet
from fedpm.model.lora import with_lora
from fedpm.model.minilm import minilm

Values = dict[str, torch.Tensor]


def _pickled(data: bytes) -> Values:
    """Return the tensors of a file that torch wrote; other objects in it are refused."""
    values: Values = torch.load(io.BytesIO(data), weights_only=True)
    return values


@dataclass(frozen=True)
class Pretrained:
    """A published network: the data set and the file that hold its values, and which of its children are what.

    Those before the ``blocks`` are frozen in every variant; ``head`` is new.
    """

    data: str
    file: str
    read: Callable[[bytes], Values]
    build: Callable[[int, Values | None], nn.Module]
    blocks: tuple[str, ...]
    head: str


@dataclass(frozen=True)
class Variant:
    """A pretrained network, and what of it is neither masked nor trained."""

    base: Pretrained
    rank: int
    frozen: tuple[str, ...]
    trained: tuple[str, ...]


def _variants(name: str, base: Pretrained) -> dict[str, Variant]:
    lower = tuple(str(child) for child in range(int(base.blocks[0])))
    head, beside = (base.head,), (*lower, "*.layer.*")
    if name == "efficientnet-lite0":
        beside += ("*.depthwise_conv.*",)  # a convolution within each channel has no product of two thin ones
    return {
        name: Variant(base, 0, lower, head),
        f"{name}-head": Variant(base, 0, (*lower, *base.blocks), ()),
        f"{name}-lora4": Variant(base, 4, beside, head),
        f"{name}-lora16": Variant(base, 16, beside, head),
        f"{name}-ffa16": Variant(base, 16, (*beside, "*.down.*"), head),
    }


_MINILM = Pretrained("minilm", "model.safetensors", load, minilm, ("5", "6"), "8")
_LITE0 = Pretrained(
    "efficientnet-lite0", "efficientnet-lite0-57934424.pth", _pickled, efficientnet, ("15", "16", "17"), "18"
)
VARIANTS = {
    **_variants("minilm", _MINILM),
    **_variants("efficientnet-lite0", _LITE0),
}
"""The networks with published values, by name."""


def variant(name: str, classes: int, published: Values | None = None) -> nn.Module:
    """Return a network by its name."""
    chosen = VARIANTS[name]
    net = chosen.base.build(classes, published)
    return with_lora(net, chosen.base.blocks, chosen.rank) if chosen.rank else net
