"""Where and how a machine computes: device, precision, threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedpm.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return a device by name; ``auto`` takes CUDA when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]  # of which torch gives much, where it speaks of its operators
        why = "" if isinstance(error, NotImplementedError) or len(reason) > 80 else f" ({reason})"
        raise ConfigError(
            f"device = {name!r}: cannot be used here{why}; auto and cpu always work, and GPUs are cuda and mps"
        ) from None
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the training precision; ``auto`` takes bfloat16 only where the hardware computes in it.

    Elsewhere bfloat16 is emulated: ten times slower than float32 on a CPU with AVX2 alone.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())
    return torch.bfloat16 if native else torch.float32


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with a fixed number of threads: float sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
