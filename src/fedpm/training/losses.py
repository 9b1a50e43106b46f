"""Losses by name: functions of a batch's output and target, and what each of them takes."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What training lowers: a function of output and target that gives one number, the mean over the batch."""


def aligned(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return an output in the shape of its target: torch would spread (N, 1) against (N,) to N × N without a word."""
    if output.shape[0] != target.shape[0] or output.numel() != target.numel():
        raise ValueError(f"an output of shape {tuple(output.shape)} for a target of shape {tuple(target.shape)}")
    return output.reshape(target.shape)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of classes: outputs (N, classes, …), targets (N, …) whole numbers.

    Of pixels or words those below 0 are of no class, and do not count.
    """
    target = target.long()
    if target.ndim == 1:
        return F.cross_entropy(output, target)
    known = target >= 0
    total = F.cross_entropy(output, target.where(known, -100), ignore_index=-100, reduction="sum")
    return total / known.sum().clamp(min=1)


def binary(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of truth values, one output each."""
    return F.binary_cross_entropy_with_logits(aligned(output, target), target.to(output.dtype))


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error."""
    return F.mse_loss(aligned(output, target), target.to(output.dtype))


def mae(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute error."""
    return F.l1_loss(aligned(output, target), target.to(output.dtype))


def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return Huber's loss, squared up to errors of 1 and absolute beyond."""
    return F.huber_loss(aligned(output, target), target.to(output.dtype))


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "binary": binary, "mse": mse, "mae": mae, "huber": huber}
"""What ``task.loss`` may name."""
NUMBERS = ("mse", "mae", "huber")
"""Those that compare numbers: of whole ones, too, none is a class."""
