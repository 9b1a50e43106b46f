"""EDEN (Vargaftik et al. 2022): the rotated change in the best levels for Gaussian numbers, and a scale a block."""

from typing import Self

from pydantic import model_validator

from fedpm.methods.dense.gaussian import GaussianLevels
from fedpm.methods.dense.quantiser import register_quantiser
from fedpm.registry import Settings, setting


class EdenSettings(Settings):
    """The quantiser of EDEN."""

    bits: float = setting(1.0, "bits per parameter: up to 1, or 2", ge=1e-3, le=2)

    @model_validator(mode="after")
    def _bits(self) -> Self:
        if 1 < self.bits < 2:
            raise ValueError(f"eden.bits = {self.bits} should be 2, or at most 1: there are no levels in between")
        return self


register_quantiser(
    "eden",
    "EDEN",
    about="the rotated changes in the best levels for Gaussian numbers",
    form=21,
    quantiser=lambda settings: GaussianLevels(settings.bits, "eden.bits"),
    settings=EdenSettings,
)
