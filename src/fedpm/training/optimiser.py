"""Torch's fused optimisers without the wait for its compiler."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimiser:
    """Torch's fused Adam or SGD, with its defaults; the rate may rise over the first ``warmup`` steps, in a line.

    Its classes import torch's compiler at first use, 1.4 s in every process; the functions behind them do not.
    """

    def __init__(self, name: str, parameters: Iterable[torch.Tensor], lr: float, warmup: int = 0) -> None:
        self._name, self._lr, self._warmup, self._taken = name, lr, warmup, 0
        self._parameters = list(parameters)
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters] if name == "adam" else []
        self._squares = [torch.zeros_like(mean) for mean in self._means]
        self._steps = [torch.zeros((), device=mean.device) for mean in self._means]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        self._taken += 1
        lr = self._lr * min(1.0, self._taken / max(1, self._warmup))
        moved = [place for place, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not moved:
            return
        parameters = [self._parameters[place] for place in moved]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        common: dict[str, Any] = {"lr": lr, "weight_decay": 0.0, "maximize": False, "fused": True}
        if self._name == "sgd":
            sgd(parameters, gradients, [None for _ in moved], momentum=0.0, dampening=0.0, nesterov=False, **common)
            return
        means, squares, steps = ([kept[at] for at in moved] for kept in (self._means, self._squares, self._steps))
        adam(
            parameters, gradients, means, squares, [], steps, amsgrad=False, beta1=0.9, beta2=0.999, eps=1e-8, **common
        )
