"""How good a network is on held-out examples."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fedpm.data.datasets import Shard, to_input

BATCH = 500


@dataclass(frozen=True)
class Score:
    """Accuracy and mean cross-entropy."""

    accuracy: float
    loss: float

    @property
    def rank(self) -> tuple[float, float]:
        """A key by which better scores sort higher: accuracy, then loss."""
        return self.accuracy, -self.loss


@torch.inference_mode()
def evaluate(net: nn.Module, shard: Shard, device: torch.device) -> Score:
    """Return the score of a network in eval mode, in float32, on all examples."""
    net = net.to(device).eval()
    correct = 0
    loss = 0.0
    for start in range(0, len(shard), BATCH):
        logits = net(to_input(shard.x[start : start + BATCH], device))
        y = torch.from_numpy(shard.y[start : start + BATCH]).to(device)
        correct += int((logits.argmax(1) == y).sum())
        loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return Score(correct / len(shard), loss / len(shard))
