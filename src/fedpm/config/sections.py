"""The tables of settings that belong to no part: data, clients, network, task, local training, its end."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedpm.errors import choices
from fedpm.registry import Settings, setting


class DataConfig(Settings):
    """What is learned, and how it is divided among the clients."""

    name: Literal["digits", "mnist", "emnist", "fashion-mnist", "cifar10", "cifar100", "reuters", "folder", "own"] = (
        setting("digits", "data set")
    )
    dir: str | None = setting(
        None, "folder with the files of public data sets (default: FEDPM_DATA)", changes_results=False
    )
    path: str | None = setting(
        None,
        "of data.name = 'folder': a folder with train_x, … as .npy or .npz, or with images; or a .csv table",
        changes_results=False,
    )
    # a run knows its data by their bytes: the names of files and columns change no result
    test: str | None = setting(
        None, "what is tested on, a .csv beside that of data.path (default: a tenth of it)", changes_results=False
    )
    label: str | None = setting(None, "column of a table that is the label (default: label)", changes_results=False)
    client: str | None = setting(
        None, "column of a table that names the client (default: client)", changes_results=False
    )
    split: Literal["iid", "classes", "dirichlet", "given"] = setting(
        "iid", "how examples are divided among clients; given: as the data say, by a column or a folder a client"
    )
    classes_per_client: int | None = setting(
        None, "classes that a client has at most, c_max of data.split = 'classes'", gt=0
    )
    alpha: float | None = setting(
        None, "α of data.split = 'dirichlet': the smaller, the more unequal clients are", ge=1e-6, le=1e6
    )
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
                there = f"but it is {chosen!r}: set that too, or leave this out"
                faults.append(f"data.{key} = {value!r} belongs to data.{owner} = {choice!r}, {there}")
        for key in ("test", "label", "client"):
            if self.path is None and getattr(self, key) is not None:
                faults.append(f"data.{key} = {getattr(self, key)!r} belongs to data.path, and there is none")
        if faults:
            raise ValueError("\n".join(faults))
        return self


class ClientsConfig(Settings):
    """How many clients there are, and how many take part in a round."""

    total: int = setting(10, "how many clients there are, N", gt=0, le=2**31)
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
        "conv4", "conv6", "conv10", "resnet18", "conv4-slim", "conv6-slim", "conv10-slim", "resnet18-slim", "mlp",
        "minilm", "minilm-head", "minilm-lora4", "minilm-lora16", "minilm-ffa16",
        "efficientnet-lite0", "efficientnet-lite0-head", "efficientnet-lite0-lora4", "efficientnet-lite0-lora16",
        "efficientnet-lite0-ffa16", "own",
    ] = setting(
        "conv4",
        "network; slim: a quarter of the channels; mlp takes any inputs; of pretrained ones see docs/pretrained.md",
    )  # fmt: skip
    init: Literal["auto", "zero-sum", "half", "kaiming", "e"] = setting(
        "auto",
        "σ of the frozen weights and where θ starts; auto: as tuned for the algorithm; zero-sum: 2/√fan_in, and θ "
        "starts at 0 or 1, so that a unit's weights sum to 0 (docs/start.md); half: the same with a random half of "
        "them; kaiming: √(2/fan_in), and θ starts between, as in the paper; e: e/√fan_in, as in the authors' code",
    )
    weights: Literal["random", "given"] = setting(
        "random", "the values under the mask: random ±σ, or given: those of a pretrained network (docs/pretrained.md)"
    )
    affine: Literal["auto", "trained", "frozen"] = setting(
        "auto",
        "parameters that no mask suits, such as scales of norm layers: trained as floats or frozen; auto: trained, but "
        "frozen with model.weights = 'given'",
    )
    keep: float = setting(
        0.98, "of model.weights = 'given': θ of every masked weight before any training", gt=0.5, le=1
    )


class LocalConfig(Settings):
    """Training on a client."""

    epochs: int = setting(3, "passes of a client over its examples in a round", gt=0)
    batch_size: int = setting(128, "examples in a minibatch, at most", gt=0)
    lr: Annotated[float, Field(gt=0)] | Literal["auto"] = setting(
        "auto", "learning rate; auto: as tuned for the algorithm, FedPM's by fedpm.effort from a client's steps"
    )
    lr_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = setting(
        "auto", "factor of local.lr, round after round; auto: as tuned for the algorithm"
    )
    lr_fade: Annotated[float, Field(ge=0)] | Literal["auto"] = setting(
        "auto",
        "T: the rate also falls as 1/√(1 + (t − 1)/T) in round t; 0: it does not; auto: as tuned for the algorithm",
    )
    lr_warmup: Annotated[float, Field(ge=0, le=1)] = setting(
        0.0,
        "share of a client's steps in a round over which the rate rises to its height, for Adam begins each round "
        "anew; 0.25 learns more in the first rounds (docs/start.md)",
    )
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = setting(
        "auto",
        "Adam's β1: how much of the mean gradient of earlier steps a step keeps; auto: as tuned for the algorithm, "
        "FedPM's and that of weights 1 − 6/steps of a client in a round, at least 0.7 and at most 0.9 (docs/start.md)",
    )
    adam_epsilon: Annotated[float, Field(ge=0, le=100)] | Literal["auto"] = setting(
        "auto",
        "Adam's ε as a share of a layer's gradients: a weight whose gradients are small beside them moves less; 0: all "
        "move equally far; 1 suits clients that lack classes (docs/start.md); auto: as tuned for the algorithm",
    )
    whiten: bool | Literal["auto"] = setting(
        "auto",
        "even out the directions of each layer's gradient before a step, so that what all inputs share does not drown "
        "the rest (docs/start.md); not for private steps; auto: as tuned for the algorithm",
    )
    float_lr: float = setting(
        0.001, "rate of Adam on parameters that are trained as floats, such as the scales of norm layers", gt=0
    )
    gradient: Literal["theta", "identity"] = setting(
        "theta", "straight-through gradient of the Bernoulli sample: times θ, or unchanged"
    )
    lookahead: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = setting(
        "auto",
        "μ: a client starts ahead of a broadcast by μ of what changed since the one before: momentum between rounds, "
        "for Adam begins each anew (docs/start.md); auto: as tuned for the algorithm",
    )
    logit_adjustment: float = setting(
        0.0,
        "τ: the local loss adds τ · log(a client's share of each class) to the logits, so that a client that lacks "
        "classes does not unlearn them; nothing of it leaves the client",
        ge=0,
        le=10,
    )
    cache: bool = setting(
        False,
        "run the frozen first layers of a pretrained network once on every example and keep what they give, in memory",
    )
    threads: int = setting(1, "threads of a training step (part of the result: docs/howto/resume.md)", gt=0)


LOSSES = ("cross-entropy", "binary", "mse", "mae", "huber")
METRICS = ("accuracy", "f1", "mse", "mae", "r2", "loss")
"""The losses and the metrics that have names."""


class TaskConfig(Settings):
    """What training lowers, and by what networks are judged."""

    loss: str = setting(
        "auto", f"what training lowers: {', '.join(LOSSES)}, or MODULE:FUNCTION; auto: cross-entropy (docs/tasks.md)"
    )
    metrics: Literal["auto"] | list[str] = setting(
        "auto",
        f"by what networks are judged, the first decides: {', '.join(METRICS)}, or MODULE:FUNCTION; auto: accuracy of "
        "classes and truth values, else the loss",
    )

    @field_validator("metrics", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) and value != "auto" else value

    @model_validator(mode="after")
    def _known(self) -> Self:
        faults = [
            f"task.{key} = {name!r}: {choices(name, known)}, or MODULE:FUNCTION"
            for key, names, known in (("loss", [self.loss], LOSSES), ("metrics", self.metrics, METRICS))
            for name in (names if isinstance(names, list) else [])
            if name != "auto" and name not in known and ":" not in name
        ]
        if faults or self.metrics == []:
            raise ValueError("\n".join(faults) or "task.metrics = []: one at least should be there, or 'auto'")
        return self


class EvaluationConfig(Settings):
    """Where networks are scored, and whether clients score their own."""

    at: Literal["server", "clients"] = setting(
        "server",
        "who scores held-out examples of clients: the server, which pools them as a simulation can, or the clients of "
        "a round, which send counts (docs/tasks.md)",
    )
    local: bool = setting(
        False, "clients also score what they received and what they trained, on examples that they hold out"
    )

    @property
    def held(self) -> bool:
        """Whether clients hold out examples of their own."""
        return self.local or self.at == "clients"


class StopConfig(Settings):
    """When training ends before its last round."""

    patience: int | None = setting(
        None, "rounds without a better score on validation data after which training ends (default: never)", gt=0
    )
