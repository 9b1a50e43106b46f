"""Uniform draws on a device, for the mask samples of local training."""

import numpy as np
import torch

from fedpm.rng import Streams


class Noise:
    """Uniform floats in (0, 1) for the mask samples of local training.

    On the CPU they have 16 bits: four to a Philox word, several times cheaper than ``torch.rand``, and fine
    enough for probabilities that a training step blurs anyway. Uploads are sampled with 32 bits elsewhere.
    """

    def __init__(self, streams: Streams, purpose: str, device: torch.device) -> None:
        key = streams.key(purpose)
        self._device = device
        self._philox = np.random.Philox(key=key)
        self._torch = torch.Generator(device)
        self._torch.manual_seed(key % 2**63)

    def uniform(self, count: int) -> torch.Tensor:
        """Return the next ``count`` draws as float32."""
        if self._device.type != "cpu":
            return torch.rand(count, generator=self._torch, device=self._device)
        words = self._philox.random_raw(-(-count // 4)).astype("<u8", copy=False)
        draws = torch.from_numpy(words.view("<i2")[:count]).to(torch.float32)
        return draws.add_(32768.5).mul_(2.0**-16)
