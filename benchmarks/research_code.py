"""Mask training as research code does it, to measure against.

Rebuilt from a description of published code: float32, each layer its own score tensor and a Bernoulli draw of it
through SciPy, a model a client, deep copies of state dicts, masks sent and averaged as float tensors.
"""

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedpm.data.datasets import Shard, to_input
from fedpm.model.masking import MaskedNetwork
from fedpm.training.local import CPU


class Draw(torch.autograd.Function):
    """A Bernoulli draw with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, theta: torch.Tensor) -> torch.Tensor:
        """Sample through SciPy."""
        from scipy.stats import bernoulli

        return torch.from_numpy(bernoulli.rvs(theta.detach().numpy()).astype(np.float32))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Pass the gradient on."""
        return gradient


def draw(theta: torch.Tensor) -> torch.Tensor:
    """Return a Bernoulli draw."""
    mask: torch.Tensor = Draw.apply(theta)  # type: ignore[no-untyped-call]
    return mask


class ResearchNetwork(nn.Module):
    """A network with a score tensor for each layer."""

    def __init__(self, network: MaskedNetwork) -> None:
        super().__init__()
        self.net = copy.deepcopy(network.net)
        self.names = list(network.views(network.weights(0)))
        for name, weight in network.views(network.weights(0)).items():
            flat = name.replace(".", "_")
            self.register_buffer(f"w_{flat}", weight.clone())
            self.register_parameter(f"s_{flat}", nn.Parameter(torch.randn_like(weight)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sample every layer and apply the network."""
        weights = {}
        for name in self.names:
            flat = name.replace(".", "_")
            mask = draw(torch.sigmoid(getattr(self, f"s_{flat}")))
            weights[name] = mask * getattr(self, f"w_{flat}")
        output: torch.Tensor = torch.func.functional_call(self.net, weights, (x,))
        return output


def train_round(server: ResearchNetwork, shards: list[Shard], epochs: int, batch_size: int) -> None:
    """Train every client from a copy of the server's model, and average the masks they send."""
    uploads: list[dict[str, torch.Tensor]] = []
    for shard in shards:
        client = copy.deepcopy(server)
        client.load_state_dict(copy.deepcopy(server.state_dict()))
        scores = [value for name, value in client.named_parameters() if name.startswith("s_")]
        adam = torch.optim.Adam(scores, lr=0.1)
        for _ in range(epochs):
            order = torch.randperm(len(shard.y)).numpy()
            for chosen in np.array_split(order, -(-len(order) // batch_size)):
                x = to_input(shard.x[chosen], CPU).contiguous()
                adam.zero_grad()
                loss = F.cross_entropy(client(x), torch.from_numpy(shard.y[chosen]))
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
        theta = {n: torch.sigmoid(v.detach()) for n, v in client.named_parameters() if n.startswith("s_")}
        uploads.append({name: draw(value) for name, value in theta.items()})
    state = copy.deepcopy(server.state_dict())
    for name in uploads[0]:
        mean = torch.stack([upload[name] for upload in uploads]).mean(0)
        state[name] = torch.logit(mean.clamp(0.01, 0.99))
    server.load_state_dict(state)
