"""The tables of settings that belong to no part: data, clients, network, local training."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpm.registry import Settings, setting


class DataConfig(Settings):
    """What is learned, and how it is divided among the clients."""

    name: Literal["digits", "mnist", "emnist", "fashion-mnist", "cifar10", "cifar100", "folder", "own"] = setting(
        "digits", "data set"
    )
    dir: str | None = setting(
        None, "folder with the files of public data sets (default: FEDPM_DATA)", changes_results=False
    )
    path: str | None = setting(
        None, "the folder of data.name = 'folder': train_x, … as .npy or .npz", changes_results=False
    )
    split: Literal["iid", "classes", "dirichlet"] = setting("iid", "how examples are divided among clients")
    classes_per_client: int | None = setting(None, "c_max of data.split = 'classes'", gt=0)
    alpha: float | None = setting(None, "α of data.split = 'dirichlet'", ge=1e-6, le=1e6)
    train_examples: int | None = setting(None, "use only so many training examples", gt=0)
    test_examples: int | None = setting(None, "score on only so many test examples", gt=0)
    validation: float = setting(0.1, "share of the training data held out to choose on", gt=0, lt=1)

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


class ClientsConfig(Settings):
    """How many clients there are, and how many take part in a round."""

    total: int = setting(10, "clients, N", gt=0, le=2**31)
    sampled: int | None = setting(None, "clients drawn for each round, K (default: all)", gt=0)
    rho: float | None = setting(None, "participation ratio K/N, instead of sampled", gt=0, le=1)

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


class ModelConfig(Settings):
    """The frozen network."""

    name: Literal[
        "conv4", "conv6", "conv10", "resnet18", "conv4-slim", "conv6-slim", "conv10-slim", "resnet18-slim", "own"
    ] = setting("conv4", "network; a slim one has a quarter of the channels")
    init: Literal["kaiming", "e", "half"] = setting(
        "kaiming",
        "σ of the frozen weights: √(2/fan_in); e/√fan_in as in the authors' code; half: 2/√fan_in, and θ starts at 0 "
        "or 1 instead of between (docs/start.md)",
    )


class LocalConfig(Settings):
    """Training on a client."""

    epochs: int = setting(3, "local epochs", gt=0)
    batch_size: int = setting(128, "examples in a minibatch, at most", gt=0)
    lr: Annotated[float, Field(gt=0)] | Literal["auto"] = setting(
        "auto", "learning rate; auto: as tuned for the algorithm (of Adam on FedPM's scores: 0.1)"
    )
    lr_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = setting(
        "auto", "factor of local.lr, round after round; auto: as tuned for the algorithm"
    )
    gradient: Literal["theta", "identity"] = setting(
        "theta", "straight-through gradient of the Bernoulli sample: times θ, or unchanged"
    )
    threads: int = setting(1, "threads of a training step (part of the result: see README)", gt=0)
