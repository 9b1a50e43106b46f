"""What a network gives: a tensor, or something that has one by the name of ``logits``."""

from collections.abc import Mapping
from typing import Any

import torch

from fedpm.errors import ConfigError


def logits_of(output: Any) -> torch.Tensor:
    """Return the tensor of an output: itself, the entry ``"logits"`` of a dict, or the attribute ``logits``."""
    if isinstance(output, torch.Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, torch.Tensor):
        return found
    what = f"a dict of {', '.join(map(str, output))}" if isinstance(output, Mapping) else f"a {type(output).__name__}"
    raise ConfigError(
        f"the network gives {what}; it should give a tensor, a dict with 'logits', or an object with .logits: wrap it "
        "in a module that does"
    )
