"""What becomes of each parameter of a network: it is masked, trained as floats, or frozen.

*masked*: its values are random ±σ, known from the seed, or those that the network has, and a mask says which are kept.
*trained*: a small part that a mask suits badly, such as the scale of a norm layer; floats that travel and are averaged.
*frozen*: it keeps its value.
"""

import copy
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from fedpm.errors import ConfigError

Selector = str | type[nn.Module]
"""Which parameters: a name or a module's name, a pattern such as ``encoder.*``, or a class of modules."""

Selectors = Selector | Collection[Selector]
"""One of them, or several."""

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def check_network(net: Any) -> None:
    """Refuse what cannot be a network; None is one that is built in."""
    if isinstance(net, type):
        raise ConfigError(f"net: {net.__name__} is a class; give a network of it: {net.__name__}(…)")
    if net is not None and not isinstance(net, nn.Module):
        raise ConfigError(
            f"net: a {type(net).__name__} is no network; give an nn.Module, or name one that is built in: model.name"
        )


@dataclass(frozen=True)
class Part:
    """One masked parameter: its place in the flat vector is fixed by the order of the parts."""

    name: str
    shape: tuple[int, ...]
    sigma: float
    fan_in: float
    zero_row: int | None = None  # an embedding's padding row, which must stay zero

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @property
    def dense_sigma(self) -> float:
        """The deviation from which dense training starts: √(2/fan_in), whatever the frozen weights are; 0 of biases."""
        return 0.0 if len(self.shape) == 1 else math.sqrt(2) / math.sqrt(self.fan_in)


@dataclass(frozen=True)
class Kinds:
    """The parameters of a network by kind, each in the module's order."""

    masked: list[Part]
    trained: list[str]
    frozen: list[str]


def kinds_of(
    net: nn.Module,
    gain: float,
    *,
    frozen: Selectors = (),
    trained: Selectors = (),
    masked: Selectors = (),
    rest: str = "trained",
) -> Kinds:
    """Sort the parameters: as the selectors say, in this order; otherwise masked where that works, or as the ``rest``.

    The rest is ``"trained"`` or ``"frozen"``.
    """
    if isinstance(net, torch.jit.ScriptModule):
        raise ConfigError("a scripted network cannot be taken apart; give the module that it was made of")
    frozen, trained, masked = several(frozen), several(trained), several(masked)
    for selector in (*frozen, *trained, *masked):
        if not isinstance(selector, str | type):
            raise ConfigError(
                f"frozen, trained or masked names {selector!r}: should be a name, a pattern or a class of modules"
            )
    found, left = Kinds([], [], []), {*frozen, *trained, *masked} - {"*"}
    for name, parameter in net.named_parameters():
        owner = net.get_submodule(name.rpartition(".")[0])
        if nn.parameter.is_lazy(parameter):
            raise ConfigError(f"{name} ({type(owner).__name__}) has no shape yet: call the network once on an input")
        chosen = [{s for s in selectors if selects(s, name, net)} for selectors in (frozen, trained, masked)]
        left -= set[Selector]().union(*chosen)
        fan_in = _fan_in(net, name)
        if chosen[0] or (rest == "frozen" and fan_in is None and not (chosen[1] or chosen[2])):
            found.frozen.append(name)
        elif chosen[1] or (fan_in is None and not chosen[2]):
            found.trained.append(name)
        elif fan_in is None:
            raise ConfigError(
                f"cannot mask {name} ({type(owner).__name__}): only weights and biases of linear, convolution, "
                "embedding, attention and recurrent layers are masked; leave it to be trained, or freeze it"
            )
        else:
            row = owner.padding_idx if isinstance(owner, nn.Embedding) else None
            found.masked.append(Part(name, tuple(parameter.shape), gain / math.sqrt(fan_in), fan_in, row))
    if left:
        names = ", ".join(sorted(s if isinstance(s, str) else s.__name__ for s in left))
        raise ConfigError(f"frozen, trained or masked names {names}: the network has no such parameter or module")
    if not found.masked:
        raise ConfigError("no parameter of the network is masked: leave at least one layer to the mask")
    return found


def several(selectors: Selectors) -> Collection[Selector]:
    """Return selectors as a collection: a name alone is one of its own, and not its letters."""
    if isinstance(selectors, Collection) and not isinstance(selectors, str | type):
        return selectors
    return (selectors,)


def selects(selector: Selector, name: str, net: nn.Module) -> bool:
    """Tell whether a selector means a parameter."""
    if isinstance(selector, str):
        return name == selector or name.startswith(f"{selector}.") or fnmatchcase(name, selector)
    return any(isinstance(module, selector) for module in _owners(net, name))


def _owners(net: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield the modules that a parameter lies in, from the network down to its own."""
    yield net
    for child in name.split(".")[:-1]:
        net = net.get_submodule(child)
        yield net


def _fan_in(net: nn.Module, name: str) -> float | None:
    """Return how many inputs reach one output through a parameter, or None for one that is not masked."""
    *outer, owner = _owners(net, name)
    own, shape = name.rpartition(".")[2], net.get_parameter(name).shape
    if isinstance(owner, ParametrizationList):  # masked if it is the whole of what it stands for
        layer, own = outer[-2], name.split(".")[-2]
        whole = getattr(copy.deepcopy(layer).to("meta"), own)  # to look at it may change a buffer of the caller's
        return _layer_fan_in(layer, own, shape) if shape == whole.shape else None
    return _layer_fan_in(owner, own, shape)


def _layer_fan_in(module: nn.Module, own: str, shape: tuple[int, ...]) -> float | None:
    if isinstance(module, nn.RNNBase):  # weight_ih_l0, bias_hh_l0_reverse, …
        return shape[1] if own.startswith("weight_") else module.hidden_size
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim if own == "in_proj_bias" else shape[1] if own.endswith("_weight") else None
    if own not in ("weight", "bias"):
        return None
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # of Hugging Face: a linear layer, transposed
        return module.get_parameter("weight").shape[0]
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.Bilinear):
        return module.in1_features * module.in2_features
    if isinstance(module, _CONVS):
        return module.in_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, _TRANSPOSED):  # each output sees the kernel thinned by the stride
        reach = math.prod(module.kernel_size) / math.prod(module.stride)
        return module.in_channels // module.groups * max(1.0, reach)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is None:
        return 1  # one row is looked up
    return None


def first_difference(wanted: str, given: str) -> str:
    """Return the first place in which two descriptions of networks differ."""
    pairs = zip_longest(wanted.splitlines(), given.splitlines(), fillvalue="nothing")
    words = "the model has {!r}, and the network {!r}: give the network that it was trained with"
    return next(words.format(ours, theirs) for ours, theirs in pairs if ours != theirs)


def lacking(net: nn.Module, names: Iterable[str]) -> str:
    """Return what a model has and a network does not, in words; nothing if it has all."""
    there = {name for named in (net.named_parameters(), net.named_modules()) for name, _ in named}
    missing = [name for name in names if name not in there]
    return f"it has {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}, which yours lacks" if missing else ""
