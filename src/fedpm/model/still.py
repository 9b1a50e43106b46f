"""What of a network stays as it is: modules in which nothing is masked or trained, and what tells one from another."""

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import nn


class Tail(nn.Sequential):
    """A ``nn.Sequential`` for inputs that have passed its first children; all of them keep their names."""

    def __init__(self, net: nn.Module, skip: int) -> None:
        super().__init__(OrderedDict(net.named_children()))
        self._skip = skip
        self.training = net.training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the other children."""
        for child in list(self)[self._skip :]:
            x = child(x)
        return x


def leading(net: nn.Module, moving: Collection[str]) -> int:
    """Return how many first children of a ``nn.Sequential`` hold no parameter that is masked or trained."""
    if type(net) is not nn.Sequential:
        return 0
    owners = {name.partition(".")[0] for name in moving}
    names = [name for name, _ in net.named_children()]
    return next((place for place, name in enumerate(names) if name in owners), len(names))


def still_modules(net: nn.Module, moving: Collection[str]) -> tuple[str, ...]:
    """Return the modules that hold values of which none is masked or trained, and those ahead of all that moves."""
    ahead = tuple(name for name, _ in list(net.named_children())[: leading(net, moving)])
    return tuple(
        name
        for name, module in net.named_modules()
        if name.split(".")[0] in ahead or (module.state_dict() and not any(_within(m, name) for m in moving))
    )


def _within(parameter: str, module: str) -> bool:
    return not module or parameter.startswith(f"{module}.")


def norm_buffers(
    net: nn.Module, names: tuple[str, ...], but: Collection[str] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield these buffers of the norm layers, which are learned without gradients, except those of some modules."""
    for prefix, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats and prefix not in but:
            for name in names:
                yield f"{prefix}.{name}".lstrip("."), getattr(module, name)


def base_hash(*tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted({name: tensor for group in tensors for name, tensor in group.items()}.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
