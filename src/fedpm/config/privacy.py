"""The settings of differential privacy, and what would make its guarantee false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpm.config.sections import Section

if TYPE_CHECKING:
    from fedpm.config import Config


class PrivacyConfig(Section):
    """Whom training protects, and how well."""

    unit: Literal["none", "example", "client"] = Field(
        "none", description="what stays private: nothing, each example of a client (DP-SGD), all of a client's data"
    )
    epsilon: float | None = Field(
        None, gt=0, le=100, description="budget ε: training stops before it would be exceeded"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the guarantee; below one over the examples of a client")
    noise: Annotated[float, Field(ge=0.2)] | Literal["auto"] = Field(
        "auto", description="noise multiplier of a step; auto: the least with which all rounds fit the budget"
    )
    clip: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto",
        description="ℓ2 bound of an example's gradient (auto: 0.01), or of a client's move of the scores (auto: the "
        "most with which all rounds fit the budget)",
    )
    sampling_rate: float = Field(
        1.0, gt=0, le=1, description="chance of each example to be in a step, instead of local.batch_size"
    )
    secret: bool = Field(
        False, description="clients draw from the operating system, not from the seed: needed outside a simulation"
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
    privacy = config.privacy
    if privacy.unit == "none":
        return []
    faults = []
    if config.algorithm != "fedpm":
        faults.append(
            f"privacy.unit = {privacy.unit!r}: algorithm = {config.algorithm!r} sends more than its noise covers; "
            "only 'fedpm' trains with privacy"
        )
    if privacy.unit == "client" and config.codec in ("shared-randomness", "relative-entropy"):
        faults.append(
            f"privacy.unit = 'client' rests on the randomness of the upload, and with codec = {config.codec!r} the "
            "server knows that randomness: use 'side-information' or 'frequency'"
        )
    if config.precision == "bfloat16":
        faults.append(
            "precision = 'bfloat16' computes the norm of a gradient to 2 digits, so that clipping would not bound it: "
            "use 'float32' with privacy"
        )
    return faults
