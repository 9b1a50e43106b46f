"""The settings of differential privacy, and what would make its guarantee false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpm.registry import CODERS, METHODS, Settings, setting

if TYPE_CHECKING:
    from fedpm.config.schema import Config


class PrivacyConfig(Settings):
    """Whom training protects, and how well."""

    unit: Literal["none", "example", "client"] = setting(
        "none", "what stays private: nothing, each example of a client (DP-SGD), all of a client's data"
    )
    epsilon: float | None = setting(None, "budget ε: training stops before it would be exceeded", gt=0, le=100)
    delta: float = setting(1e-5, "δ of the guarantee; below one over the examples of a client", gt=0, lt=1)
    noise: Annotated[float, Field(ge=0.2)] | Literal["auto"] = setting(
        "auto", "noise multiplier of a step; auto: the least with which all rounds fit the budget"
    )
    clip: Annotated[float, Field(gt=0)] | Literal["auto"] = setting(
        "auto",
        "ℓ2 bound of an example's gradient (auto: 0.01), or of a client's move of the scores (auto: the most with "
        "which all rounds fit the budget)",
    )
    sampling_rate: float = setting(
        1.0, "chance of each example to be in a step, instead of local.batch_size", gt=0, le=1
    )
    secret: bool | Literal["auto"] = setting(
        "auto",
        "clients draw from the operating system, not from the seed, which the server knows: their part of a run cannot "
        "be recomputed, nor repeated; auto: true in a fleet, false in a simulation",
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        given = {"epsilon": self.epsilon is not None, "noise": self.noise != "auto", "clip": self.clip != "auto"}
        if self.unit == "none":
            faults = [
                f"privacy.{key} = {getattr(self, key)} protects nobody while privacy.unit = 'none': "
                "choose unit = 'example' or 'client'"
                for key, set_ in given.items()
                if set_
            ]
        else:
            faults = [] if given["epsilon"] else [f"privacy.unit = {self.unit!r} needs privacy.epsilon, such as 8"]
        if self.unit == "client" and (given["noise"] or self.sampling_rate < 1):
            faults.append(
                "privacy.noise and privacy.sampling_rate belong to privacy.unit = 'example', but it is 'client'"
            )
        if faults:
            raise ValueError("\n".join(faults))
        return self


def refusals(config: Config) -> list[str]:
    """Return what in the other settings would make the guarantee false."""
    unit = config.privacy.unit
    if unit == "none":
        return []
    faults = []
    if unit not in METHODS[config.algorithm].private:
        able = " or ".join(repr(spec.name) for spec in METHODS if unit in spec.private)
        faults.append(
            f"privacy.unit = {unit!r}: algorithm = {config.algorithm!r} sends more than its noise covers; "
            f"only {able} trains with privacy"
        )
    if unit == "client" and config.codec != "auto" and CODERS[config.codec].shared_randomness:
        able = " or ".join(repr(spec.name) for spec in CODERS if not spec.shared_randomness)
        faults.append(
            f"privacy.unit = 'client' rests on the randomness of the upload, and with codec = {config.codec!r} the "
            f"server knows that randomness: use {able}"
        )
    if unit == "example" and config.local.logit_adjustment:
        faults.append(
            f"local.logit_adjustment = {config.local.logit_adjustment} makes every gradient depend on all labels of a "
            "client, which clipping single examples does not bound: use 0 with privacy.unit = 'example'"
        )
    if config.evaluation.held:
        faults.append(
            f"privacy.unit = {unit!r}: scores of clients' own examples would leave them without noise; use "
            "evaluation.at = 'server' and evaluation.local = false"
        )
    if config.precision == "bfloat16":
        faults.append(
            "precision = 'bfloat16' computes the norm of a gradient to 2 digits, so that clipping would not bound it: "
            "use 'float32' with privacy"
        )
    return faults
