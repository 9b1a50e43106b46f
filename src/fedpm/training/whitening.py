"""Gradients of layers, whitened: a direction that all examples share no longer drowns the others.

The gradient of a layer is a matrix, and a few of its directions have most of its length, for inputs have much in
common. A step along it learns little else. The nearest orthogonal matrix has all directions alike; two Newton–Schulz
steps towards it, with the coefficients of Muon (Jordan et al. 2024), do most of that, and less to small directions,
which are noise.
"""

from collections.abc import Iterable

import torch

WIDEST = 512
"""Layers of more units and inputs stay as they are: the work grows with the cube of the smaller of the two."""
STEPS = 2
LINEAR, CUBIC, QUINTIC = 3.4445, -4.775, 2.0315


@torch.no_grad()
def whiten(parameters: Iterable[torch.Tensor]) -> None:
    """Even out the directions of each parameter's gradient, which keeps its length; vectors stay as they are."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.dim() > 1:
            parameter.grad = whitened(parameter.grad.flatten(1)).view_as(parameter)


def whitened(gradient: torch.Tensor) -> torch.Tensor:
    """Return a matrix of the same length, whose directions are more alike."""
    rows, columns = gradient.shape
    if min(rows, columns) > WIDEST:
        return gradient
    tiny = torch.finfo(gradient.dtype).tiny
    length = gradient.norm()
    matrix: torch.Tensor = (gradient if rows <= columns else gradient.T) / length.clamp(min=tiny)
    for _ in range(STEPS):
        square = matrix @ matrix.T
        matrix = LINEAR * matrix + (CUBIC * square + QUINTIC * square @ square) @ matrix
    matrix = matrix.to(gradient.dtype)
    matrix *= length / matrix.norm().clamp(min=tiny)
    return matrix if rows <= columns else matrix.T.contiguous()
