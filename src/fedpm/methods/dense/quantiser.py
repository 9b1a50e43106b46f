"""A dense method is a quantiser: how one is made, and how it becomes a method that can be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from fedpm.methods.averaging import restless
from fedpm.methods.base import Ingredients
from fedpm.registry import MethodSpec, Settings, register, setting
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.data.datasets import Shard
    from fedpm.methods.dense.deltas import Deltas
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.local import Local, Trained


@dataclass(frozen=True)
class Quantised:
    """A coded change of weights, and the bits per parameter that the paper would report for it (docs/baselines.md)."""

    coded: Coded
    paper_bpp: float


class Quantiser(Protocol):
    """Turns changes of weights into bytes and back."""

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Code a finite change; ``rng`` is the client's own, and both ends hold ``shared``."""

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the change, or raise WireError; values may be infinite, which the caller refuses."""


class Trainer(Protocol):
    """Trains weights on a client."""

    @property
    def local(self) -> Local:
        """How a client trains."""

    def train(self, start: Vector, *, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Return the weights after training on a client's examples."""


def weight_trainer(given: Ingredients, local: Local, quantiser: Quantiser) -> Trainer:
    """Return the training of weights that knows nothing of the quantiser: the usual one."""
    from fedpm.training.weights import WeightTrainer

    return WeightTrainer(given.network, local)


def the_mean(mean: Vector) -> Vector:
    """Return the mean change as it is: the usual direction of the server's step."""
    return mean


class DenseSettings(Settings):
    """What all methods share that train weights."""

    optimiser: Literal["auto", "sgd", "adam"] = setting("auto", "of local training")
    server_lr: Annotated[float, Field(gt=0)] | Literal["auto"] = setting(
        "auto", "the server's rate, by which it multiplies the mean change"
    )
    server_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = setting(
        "auto", "factor of dense.server_lr, round after round"
    )
    broadcast: Literal["relay", "float32", "bfloat16", "quantised"] = setting(
        "relay",
        "how weights are sent to clients; relay: uploads are passed on where that is shorter than float32, which loses "
        "nothing; quantised: the server's steps in dense.broadcast_bits, and what they lose is added to the next",
    )
    broadcast_bits: Literal[1, 2] = setting(1, "bits per parameter of a quantised step")


TUNED = {
    "model.init": "kaiming",
    "local.lr": 0.003,
    "dense.optimiser": "adam",
    "dense.server_lr": 1.0,
    "local.lr_decay": 1.0,
    "local.lr_fade": 5.0,
    "local.adam_beta1": lambda settings: "auto" if settings["model.weights"] == "random" else 0.9,
    "dense.server_decay": 1.0,
    "average": restless,
}
"""What ``auto`` means, unless a method says otherwise."""


def register_quantiser(
    name: str,
    label: str,
    *,
    about: str,
    form: int,
    quantiser: Callable[[Any], Quantiser],
    settings: type[Settings] | None = None,
    tuned: Mapping[str, Any] | None = None,
    direction: Callable[[Any], Callable[[Any], Any]] = lambda settings: the_mean,
    trainer: Callable[[Ingredients, Local, Any], Trainer] = weight_trainer,
) -> None:
    """Register a dense method by its quantiser; ``quantiser`` and ``direction`` are given its settings.

    ``trainer`` is for methods whose clients train for what their quantiser can send; it is given the quantiser too.
    """

    def build(given: Ingredients) -> Deltas:
        from fedpm.methods.dense.deltas import Deltas
        from fedpm.methods.dense.gaussian import GaussianLevels

        dense: Any = given.tables["dense"]
        own = given.tables.get(name.replace("-", "_"))
        made = quantiser(own)
        return Deltas(
            network=given.network,
            seed=given.seed,
            trainer=trainer(given, replace(given.local, optimiser=dense.optimiser), made),
            quantiser=made,
            form=form,
            aggregator=given.aggregator,
            server_lr=dense.server_lr,
            server_decay=dense.server_decay,
            broadcast_as=dense.broadcast,
            down=GaussianLevels(dense.broadcast_bits),
            direction=direction(own),
            average=given.average,
        )

    build.__module__ = quantiser.__module__
    register(
        MethodSpec(
            name=name,
            label=label,
            about=about,
            build=build,
            settings=settings,
            tuned={**TUNED, **(tuned or {})},
            shared={"dense": DenseSettings},
            form=form,
        )
    )
