"""What is written down about θ, layers and versions, for reports."""

import math
import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedpm.methods.base import Method
from fedpm.model.masking import MaskedNetwork
from fedpm.wire.masks import Mask, Signs
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


def layers(network: MaskedNetwork, mask: Mask | Signs | Vector | None) -> list[dict[str, Any]]:
    """Return each parameter's name, size and kind, and the share of a masked one that the final mask keeps."""
    found: list[dict[str, Any]] = [{"name": part.name, "size": part.size} for part in network.parts]
    if mask is not None:
        kept = zip(found, _means(network, mask != 0), strict=True)
        found = [{**layer, "kind": "masked", "kept": share} for layer, share in kept]
    for kind, names in (("trained", network.trained), ("frozen", network.frozen)):
        found += [{"name": name, "size": network.net.get_parameter(name).numel(), "kind": kind} for name in names]
    return found


def kinds_table(network: MaskedNetwork, *, masks: bool, own: bool) -> str:
    """Return how many tensors and parameters of a network are of each kind, a line each.

    ``masks`` says whether the method learns a mask or the weights themselves, ``own`` whether the network is the
    caller's, of which it should be told what becomes of the values that it has.
    """
    learned = "masked" if masks else "weights"
    sizes = {
        learned: [part.size for part in network.parts],
        **{
            kind: [network.net.get_parameter(name).numel() for name in names]
            for kind, names in (("trained", network.trained), ("frozen", network.frozen))
        },
    }
    given = network.given is not None
    about = {
        "masked": f"{'given' if given else 'random'} values, of which a mask keeps some",
        "weights": f"start {'as given' if given else 'at random'}, and are trained",
        "trained": "floats, averaged",
        "frozen": "stay as they are",
    }
    rows = [
        f"{kind:8}{len(found):9,}{sum(found):12,}  {about[kind]}"
        for kind, found in sizes.items()
        if found or kind == learned
    ]
    lost = replaced(network, learned) if own else ""
    return "\n".join([f"{'kind':8}{'tensors':>9}{'parameters':>12}", *rows, *filter(None, [lost])])


def replaced(network: MaskedNetwork, learned: str) -> str:
    """Return where a network of the caller's own starts, and how to keep its values; nothing if they are kept."""
    if network.given is not None:
        return ""
    return (
        f"of your network the form is used, and {learned} tensors start at random; if it is pretrained, "
        "weights='given' keeps its values (docs/pretrained.md)"
    )


def untrained(net: nn.Module) -> bool:
    """Return whether all linear and convolution layers look as torch makes them: within ±1/√fan_in."""
    layers = (module.weight.detach() for module in net.modules() if isinstance(module, nn.Linear | _ConvNd))
    weights = [weight for weight in layers if weight.numel()]
    return all(float(weight.abs().max()) <= 1.0001 / math.sqrt(weight[0].numel()) for weight in weights)


def versions() -> dict[str, str]:
    """Return what made the result: versions, and the kind of machine."""
    packages = {name: version(name) for name in ("fedpm", "torch", "numpy", "constriction")}
    return {**packages, "python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def _means(network: MaskedNetwork, values: npt.NDArray[Any]) -> list[float]:
    bounds = np.cumsum([part.size for part in network.parts])[:-1]
    return [round(float(layer.mean(dtype=np.float64)), 6) for layer in np.split(values, bounds)]
