"""The tables of the settings: typed, each with its own checks."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A table of settings: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataConfig(Section):
    """What is learned, and how it is spread over the clients."""

    name: Literal["digits", "mnist", "emnist", "fashion-mnist", "cifar10", "cifar100", "folder", "own"] = Field(
        "digits", description="data set"
    )
    dir: str | None = Field(None, description="folder with the files of public data sets (default: FEDPM_DATA)")
    path: str | None = Field(None, description="the folder of data.name = 'folder': train_x, … as .npy or .npz")
    split: Literal["iid", "classes", "dirichlet"] = Field("iid", description="how examples are spread over clients")
    classes_per_client: int | None = Field(None, gt=0, description="c_max of data.split = 'classes'")
    alpha: float | None = Field(None, ge=1e-6, le=1e6, description="α of data.split = 'dirichlet'")
    train_examples: int | None = Field(None, gt=0, description="use only so many training examples")
    test_examples: int | None = Field(None, gt=0, description="score on only so many test examples")
    validation: float = Field(0.1, gt=0, lt=1, description="share of the training data held out to choose on")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        pairs = (
            ("path", "name", "folder", "the folder with your arrays"),
            ("classes_per_client", "split", "classes", "2 and 4 in the paper"),
            ("alpha", "split", "dirichlet", "such as 0.5"),
        )
        faults = []
        for key, owner, choice, example in pairs:
            value, chosen = getattr(self, key), getattr(self, owner)
            if chosen == choice and value is None:
                faults.append(f"data.{owner} = {choice!r} needs data.{key} ({example})")
            elif chosen != choice and value is not None:
                faults.append(f"data.{key} = {value!r} belongs to data.{owner} = {choice!r}, but it is {chosen!r}")
        if faults:
            raise ValueError("\n".join(faults))
        return self


class ClientsConfig(Section):
    """How many clients there are, and how many take part in a round."""

    total: int = Field(10, gt=0, le=2**31, description="clients, N")
    sampled: int | None = Field(None, gt=0, description="clients drawn for each round, K (default: all)")
    rho: float | None = Field(None, gt=0, le=1, description="participation ratio K/N, instead of sampled")

    @model_validator(mode="after")
    def _sampled_fits(self) -> Self:
        if self.sampled is not None and self.rho is not None:
            raise ValueError("clients.rho and clients.sampled say the same thing: give only one of them")
        if self.sampled is not None and self.sampled > self.total:
            raise ValueError(
                f"clients.sampled = {self.sampled} should be at most clients.total = {self.total}: "
                "a round cannot sample more clients than there are"
            )
        return self

    @property
    def per_round(self) -> int:
        """The number of clients of a round, K."""
        if self.rho is not None:
            return max(1, round(self.rho * self.total))
        return self.total if self.sampled is None else self.sampled


class ModelConfig(Section):
    """The frozen network."""

    name: Literal[
        "conv4", "conv6", "conv10", "resnet18", "conv4-slim", "conv6-slim", "conv10-slim", "resnet18-slim", "own"
    ] = Field("conv4", description="network; a slim one has a quarter of the channels")
    init: Literal["kaiming", "e", "half"] = Field(
        "kaiming",
        description="σ of the frozen weights: √(2/fan_in); e/√fan_in as in the authors' code; half: 2/√fan_in, and θ "
        "starts at 0 or 1 instead of between (docs/start.md)",
    )


class LocalConfig(Section):
    """Training on a client."""

    epochs: int = Field(3, gt=0, description="local epochs")
    batch_size: int = Field(128, gt=0, description="examples in a minibatch, at most")
    lr: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="learning rate; auto: 0.1 of Adam on FedPM's scores, and as tuned for the other algorithms"
    )
    gradient: Literal["theta", "identity"] = Field(
        "theta", description="straight-through gradient of the Bernoulli sample: times θ, or unchanged"
    )
    threads: int = Field(1, gt=0, description="threads of a training step (part of the result: see README)")


class AggregationConfig(Section):
    """The Beta posterior on the server."""

    lam0: int = Field(1, gt=0, le=2**16, description="prior λ0 of both Beta parameters")
    reset_every: Literal["auto"] | int = Field(
        "auto", description="rounds between resets of the prior, γ; auto: round(N/K); 1: plain mean"
    )
    relay: bool = Field(
        True, description="let broadcasts pass the last uploads on where that is shorter: clients see one another's"
    )

    @model_validator(mode="after")
    def _resets(self) -> Self:
        if isinstance(self.reset_every, int) and self.reset_every < 1:
            raise ValueError(f"aggregation.reset_every = {self.reset_every} should be 'auto' or at least 1")
        return self


class RelativeEntropyConfig(Section):
    """The coder ``relative-entropy``."""

    index_bits: int = Field(8, ge=1, le=12, description="bits of an index: 2^index_bits candidates for each piece")
    budget: float = Field(4.0, gt=0, le=12, description="bits of KL that a block carries on average, below index_bits")

    @model_validator(mode="after")
    def _budget_fits(self) -> Self:
        if self.budget >= self.index_bits:
            raise ValueError(
                f"relative_entropy.budget = {self.budget} should be below relative_entropy.index_bits = "
                f"{self.index_bits}: an index cannot carry more than its bits"
            )
        return self


class FedMaskConfig(Section):
    """The client of FedMask."""

    clamp: float = Field(
        0.35,
        gt=0,
        lt=0.5,
        description="θ is kept in [clamp, 1 − clamp] before the logit, so that masks can still change",
    )


class DenseConfig(Section):
    """What all dense algorithms share: fedavg, signsgd, terngrad, qsgd, drive, eden."""

    optimiser: Literal["auto", "sgd", "adam"] = Field("auto", description="of local training")
    server_lr: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="the server's rate, by which it multiplies the mean change"
    )
    lr_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        "auto", description="factor of local.lr, round after round"
    )
    server_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        "auto", description="factor of dense.server_lr, round after round"
    )
    broadcast: Literal["float32", "bfloat16"] = Field("float32", description="how weights are sent to clients")


class FlowerConfig(Section):
    """What a server on Flower waits for, and what it can do without."""

    quorum: float = Field(0.5, gt=0, le=1, description="share of a round's clients whose usable answers it needs")
    deadline: float = Field(600.0, gt=0, description="seconds that a round waits for answers")
    patience: float = Field(300.0, gt=0, description="seconds to wait for clients to be connected")


class SignSGDConfig(Section):
    """The server of SignSGD."""

    vote: bool = Field(False, description="step along the majority's sign instead of the mean of signs")


class TernGradConfig(Section):
    """The quantiser of TernGrad."""

    clip: float = Field(2.5, gt=0, description="bound of a change, in standard deviations of its layer")


class QSGDConfig(Section):
    """The quantiser of QSGD."""

    levels: float = Field(0.25, ge=1e-3, le=100, description="levels s of a layer of n weights, divided by √n")


class EdenConfig(Section):
    """The quantiser of EDEN."""

    bits: float = Field(1.0, ge=1e-3, le=2, description="bits per parameter: up to 1, or 2")

    @model_validator(mode="after")
    def _bits(self) -> Self:
        if 1 < self.bits < 2:
            raise ValueError(f"eden.bits = {self.bits} should be 2, or at most 1: there are no levels in between")
        return self
