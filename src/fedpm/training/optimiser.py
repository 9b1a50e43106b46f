"""Torch's fused optimisers without the wait for its compiler."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimiser:
    """Torch's fused Adam or SGD, with its defaults.

    Its classes import torch's compiler at first use, 1.4 s in every process; the functions behind them do not.

    Args:
        name: ``"adam"`` or ``"sgd"``.
        parameters: what moves.
        lr: the rate.
        warmup: the steps over which the rate rises, in a line.
        beta1: Adam's β1.
        epsilon: Adam's ε, as a share of a layer's gradients. Adam moves a value equally far whether its gradients are
            large or small; with this it goes r/(r + ε · R) of that, for gradients of root mean square r so far in a
            layer of R.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[torch.Tensor],
        lr: float,
        *,
        warmup: int = 0,
        beta1: float = 0.9,
        epsilon: float = 0.0,
    ) -> None:
        self._name, self._lr, self._warmup, self._beta1, self._taken = name, lr, warmup, beta1, 0
        self._epsilon = epsilon if name == "adam" else 0.0
        self._parameters = list(parameters)
        self._seen = [torch.zeros_like(parameter) for parameter in self._parameters] if self._epsilon else []
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters] if name == "adam" else []
        self._squares = [torch.zeros_like(mean) for mean in self._means]
        self._steps = [torch.zeros((), device=mean.device) for mean in self._means]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, behind: Sequence[torch.Tensor | None] | None = None) -> None:
        """Move every parameter that has a gradient; ε is held against gradients ``behind`` them, if there are such."""
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
        started = [parameter.clone() for parameter in parameters] if self._epsilon else []
        means, squares, steps = ([kept[at] for at in moved] for kept in (self._means, self._squares, self._steps))
        common |= {"amsgrad": False, "beta1": self._beta1, "beta2": 0.999, "eps": 1e-8}
        adam(parameters, gradients, means, squares, [], steps, **common)
        for at, parameter, before in zip(moved, parameters, started, strict=False):
            gradient = behind[at] if behind is not None else parameter.grad
            torch.lerp(before, parameter, self._share(at, gradient), out=parameter)

    def _share(self, at: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return how much of its move each value makes: the less, the smaller its gradients beside its layer's."""
        seen = self._seen[at]
        if gradient is not None:
            seen.addcmul_(gradient, gradient)
        root = seen.sqrt()
        layer = self._epsilon * seen.mean().sqrt()
        return root.div_(root + layer.clamp_(min=torch.finfo(seen.dtype).tiny))
