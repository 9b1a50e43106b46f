"""FedMask (Li et al. 2021) as the paper adapts it: no pruning at first, masks by threshold instead of by chance.

The server half is FedPM's with a plain mean: masks come up, their counts go down. What differs is the client, which
trains scores under their own threshold, m = 1[sigmoid(s) > 0.5], and sends the mask that they end in. Where clients
agreed, θ is 0 or 1, and only its clamp leaves scores near enough to 0 for a mask to change again.
"""

from dataclasses import replace
from typing import Any

from fedpm.errors import ConfigError
from fedpm.methods.base import Ingredients
from fedpm.methods.mask.fedpm import FedPM
from fedpm.registry import MethodSpec, Settings, register, setting

TRAVEL, MOST = 1.0, 0.2
"""How far a score can go in a round, and its highest rate: to cross the clamp, few steps have to be longer ones."""


class FedMaskSettings(Settings):
    """The client of FedMask."""

    clamp: float = setting(
        0.35, "θ is kept in [clamp, 1 − clamp] before the logit, so that masks can still change", gt=0, lt=0.5
    )


def build(given: Ingredients) -> FedPM:
    """Return FedPM's server with clients that threshold."""
    from fedpm.training.scores import ScoreTrainer

    settings: Any = given.tables["fedmask"]
    if given.coding is None or given.coding.threshold_form is None:
        raise ConfigError("codec: masks by threshold need a coder that does not rest on chance")
    return FedPM(
        network=given.network,
        seed=given.seed,
        trainer=ScoreTrainer(given.network, replace(given.local, travel=TRAVEL, most=MOST), threshold=True),
        coding=given.coding,
        form=given.coding.threshold_form,
        aggregator=given.aggregator,
        clamp=settings.clamp,
        average=given.average,
        modes=("thresholded", "expected"),
        final_modes=("thresholded",),
    )


register(
    MethodSpec(
        name="fedmask",
        label="FedMask",
        about="trains a mask by threshold",
        build=build,
        settings=FedMaskSettings,
        tuned={
            "model.init": "kaiming",
            "local.lr": lambda settings: "auto",
            "local.lr_decay": 1.0,
            "average": 0.0,
            "codec": "side-information",
        },
    )
)
