"""What is written down about θ, layers and versions, for reports."""

import platform
from importlib.metadata import version
from typing import Any

import numpy as np

from fedpm.methods.base import Method
from fedpm.model.masking import MaskedNetwork
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Vector

LEVELS = 21
"""Bins of the histogram of θ, around 0, 0.05, …, 1: θ is a fraction of few masks, and 0 and 1 are where it gathers."""


def theta_statistics(method: Method[Any, Any], state: Any) -> dict[str, Any]:
    """Return the histogram of the global θ and its mean in each layer; nothing if weights are trained."""
    theta = method.mask(state, "expected")
    if theta is None:
        return {}
    counts = np.bincount(np.rint(theta * (LEVELS - 1)).astype(np.int64), minlength=LEVELS)
    return {"theta_histogram": counts.tolist(), "theta_layers": _means(method.network, theta)}


def layers(network: MaskedNetwork, mask: Mask | Vector | None) -> list[dict[str, Any]]:
    """Return each layer's name and size, and the share of its weights that the final mask keeps."""
    sizes: list[dict[str, Any]] = [{"name": part.name, "size": part.size} for part in network.parts]
    if mask is None:
        return sizes
    return [{**layer, "kept": kept} for layer, kept in zip(sizes, _means(network, mask), strict=True)]


def versions() -> dict[str, str]:
    """Return what made the result: versions, and the kind of machine."""
    packages = {name: version(name) for name in ("fedpm", "torch", "numpy", "constriction")}
    return {**packages, "python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def _means(network: MaskedNetwork, values: Mask | Vector) -> list[float]:
    bounds = np.cumsum([part.size for part in network.parts])[:-1]
    return [round(float(layer.mean(dtype=np.float64)), 6) for layer in np.split(values, bounds)]
