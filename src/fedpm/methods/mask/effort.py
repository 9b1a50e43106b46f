"""How much a FedPM client changes in a round: what a round teaches, against the bits that it costs."""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, cast

from fedpm.aggregation.flip_filter import FEWEST
from fedpm.errors import ConfigError
from fedpm.methods.averaging import restless
from fedpm.methods.base import per_round
from fedpm.registry import CODERS, Settings, setting

if TYPE_CHECKING:
    from fedpm.methods.base import Ingredients
    from fedpm.training.private import PrivateScoreTrainer
    from fedpm.training.scores import ScoreTrainer

TRAVEL = {"rounds": 2.0, "balanced": 1.0, "bits": 2.0}
EXPONENT = {"rounds": 0.5, "balanced": 0.5, "bits": 1.0}
"""The rate is ``TRAVEL`` / steps^``EXPONENT``. Adam moves a score by about its rate a step, and steps do not all agree:
at a rate of 1/√steps a score that they pull to and fro goes equally far in a round, however many they are."""
GIVEN = {"rounds": 2.0, "balanced": 1.0, "bits": 2 / 3}
"""That over given weights, over steps: they are good already, and more costs bytes and teaches no more."""
MOST = {"rounds": 0.7, "balanced": 0.5, "bits": 0.5}
"""The highest rate: with fewer than ten steps a round, each would jump too far to be corrected by the next."""
FIRST = {"rounds": 12.0, "balanced": 4.8, "bits": 3.2}
"""How far a score can go in the first round at least, if θ starts at 0 or 1: it has to cross from its clamp then."""
FADE = {"rounds": 5.0, "balanced": 12.0}
"""The rate falls as 1/√(1 + (t − 1)/T): it halves the bits, and the expected network learns no less."""
AVERAGE = 0.125
"""The share of the rounds so far whose mean θ becomes the mask, where all clients take part."""
AHEAD = 0.6
"""How far clients start ahead of a broadcast, as a share of what changed since the one before."""
PAPER = 0.1
"""The paper's rate, whatever the number of steps; it takes 105 to 140 of them in a round."""
NOISY = 1.2
"""How far the noise of private steps takes a score in a round, in the root mean square (docs/privacy.md)."""

PEERS = 128
"""The most clients of a round that are compared pair by pair: of more, all masks in memory and all pairs are dear."""


class FedPMSettings(Settings):
    """The client of FedPM."""

    effort: Literal["rounds", "balanced", "bits", "paper"] = setting(
        "rounds",
        "what local.lr = 'auto' spares: rounds (2/√steps, at most 0.7), bits (2/steps) or some of both (balanced: "
        "1/√steps); steps are a client's in a round. paper: 0.1",
    )
    forward: Literal["auto", "expected", "sampled"] = setting(
        "auto",
        "the network that a step of a client sees: expected: weights times θ; sampled: weights of a sampled mask, as "
        "in the paper; auto: expected, but sampled with effort = 'paper' and with privacy.unit = 'client'",
    )
    ship: Literal["auto", "calibrated", "thresholded", "sampled"] = setting(
        "auto",
        "the mask that is scored and shipped: thresholded: θ > 0.5; sampled: a sample of θ; calibrated: θ rounded so "
        "that layers give what they give under θ, on inputs that the server holds out, without their labels; auto: "
        "calibrated if steps see expected weights and the server holds examples out, else thresholded; where steps see "
        "samples, the better of a sample and θ > 0.5 on validation data",
    )


def coder(settings: Mapping[str, Any]) -> str:
    """Return the coder that suits an effort: the less is learned in a round, the more relative entropy spares."""
    return "relative-entropy" if settings["fedpm.effort"] in ("bits", "balanced") else "shared-randomness"


def rule(settings: Mapping[str, Any]) -> str:
    """Return the rule that folds masks: one that leaves lies out, where there are clients enough to compare."""
    clients = per_round(settings)
    hides = settings["codec"] != "auto" and getattr(CODERS[settings["codec"]], "secure", False)  # single uploads
    if clients < FEWEST or hides:
        return "mean"
    return "peer-filter" if clients <= PEERS else "flip-filter"


def rate(settings: Mapping[str, Any]) -> float | str:
    """Return the rate of an effort that does not depend on a client's steps, or that it does."""
    return PAPER if settings["fedpm.effort"] == "paper" else "auto"


def noisy_rate(settings: Mapping[str, Any]) -> float:
    """Return the rate of private steps: their noise adds up to the same in a round, however many they are."""
    from fedpm.training.private import steps_of_round

    return round(NOISY / sqrt(steps_of_round(settings["local.epochs"], settings["privacy.sampling_rate"])), 4)


def forward(settings: Mapping[str, Any]) -> str:
    """Return the network that a step sees: samples are the paper's, and noise that a few steps cannot average."""
    return "sampled" if settings["fedpm.effort"] == "paper" else "expected"


def discount(settings: Mapping[str, Any]) -> float:
    """Return what is kept of earlier masks: where not all clients take part, a round forgets."""
    if settings["aggregation.reset_every"] != "auto":
        return 0.0  # γ was chosen
    if settings["fedpm.effort"] == "paper":
        return 0.0
    return 0.5 if per_round(settings) < settings["clients.total"] else 0.0


def epsilon(settings: Mapping[str, Any]) -> float:
    """Return Adam's ε as a share of a layer's gradients: the few clients of a round leave what others need in place."""
    few = per_round(settings) < settings["clients.total"]
    return 1.0 if few and settings["fedpm.effort"] == "rounds" and settings["model.weights"] == "random" else 0.0


def beta1(settings: Mapping[str, Any]) -> float | str:
    """Return Adam's β1, or that it depends on a client's steps: where ε holds weights back, 0.9 learns more."""
    held = epsilon(settings) if settings["local.adam_epsilon"] == "auto" else settings["local.adam_epsilon"]
    ruled = settings["fedpm.effort"] != "paper" and settings["model.weights"] == "random" and not held
    return "auto" if ruled else 0.9


def whiten(settings: Mapping[str, Any]) -> bool:
    """Return whether the directions of gradients are evened out: rounds teach more, for more bytes."""
    return bool(settings["fedpm.effort"] == "rounds" and settings["model.weights"] == "random")


def lookahead(settings: Mapping[str, Any]) -> float:
    """Return how far clients start ahead: not at all where many come back late, who would be told twice as much."""
    every = per_round(settings) == settings["clients.total"]
    return AHEAD if every and settings["fedpm.effort"] != "paper" and settings["model.weights"] == "random" else 0.0


def average(settings: Mapping[str, Any]) -> float:
    """Return the share of the rounds whose mean is shipped: clients that score a network know the last round alone."""
    if settings["fedpm.effort"] == "paper" or settings["model.weights"] != "random":
        return 0.0
    return 0.0 if settings["evaluation.at"] == "clients" else restless(settings) or AVERAGE


def fade(settings: Mapping[str, Any]) -> float:
    """Return the rounds after which the rate falls, 0 for never."""
    return FADE.get(settings["fedpm.effort"], 0.0)


def trainer(given: "Ingredients") -> "ScoreTrainer | PrivateScoreTrainer":
    """Return what trains a client's probability mask: at the rate that is given, or by effort and steps."""
    from fedpm.training.private import PrivateScoreTrainer
    from fedpm.training.scores import ScoreTrainer

    settings = cast(FedPMSettings, given.tables["fedpm"])
    local = replace(given.local, forward=settings.forward)
    if local.lr is None:
        effort, random = settings.effort, given.network.keep is None
        travel, exponent = (TRAVEL[effort], EXPONENT[effort]) if random else (GIVEN[effort], 1.0)
        first = FIRST[effort] if random and given.network.init in ("half", "zero-sum") else 0.0
        local = replace(local, travel=travel, exponent=exponent, most=MOST[effort], first=first)
    if given.private is None:
        return ScoreTrainer(given.network, local)
    return PrivateScoreTrainer(given.network, local, given.private)


def networks(given: "Ingredients") -> dict[str, Any]:
    """Return which global networks are evaluated, which of them may be shipped, and what rounds θ for one of them."""
    from fedpm.training.rounding import Calibration

    final_modes, calibration = _shipped(given), None
    if "calibrated" in final_modes and given.held_out is not None:
        calibration = Calibration.of(given.network, given.held_out, given.local.device)
    modes = tuple(dict.fromkeys(("sampled", "thresholded", "expected", *final_modes)))
    return {"modes": modes, "final_modes": final_modes, "calibration": calibration}


def _shipped(given: "Ingredients") -> tuple[str, ...]:
    """Return the networks of which the best on validation data is shipped.

    Training of the expected network leads to θ > 0.5: a sample of θ is a hundredth worse, and a small validation set
    would pick it by chance every third time. Rounded layer by layer instead, the mask is as good as θ itself.
    """
    settings = cast(FedPMSettings, given.tables["fedpm"])
    if settings.ship == "calibrated" and given.held_out is None:
        raise ConfigError(
            "fedpm.ship = 'calibrated': the server holds out no examples to calibrate on; let it "
            "(evaluation.at = 'server'), or use 'thresholded'"
        )
    if settings.ship != "auto":
        return (settings.ship,)
    if settings.forward != "expected":
        return ("sampled", "thresholded")
    return ("thresholded",) if given.held_out is None else ("calibrated",)


TUNED: Mapping[str, Any] = {
    "model.init": "zero-sum",
    "local.lr": rate,
    "local.lr_decay": 1.0,
    "local.lr_fade": fade,
    "local.adam_beta1": beta1,
    "local.adam_epsilon": epsilon,
    "local.whiten": whiten,
    "local.lookahead": lookahead,
    "fedpm.forward": forward,
    "aggregation.discount": discount,
    "average": average,
    "codec": coder,
    "aggregator": rule,
}
"""What ``auto`` means for FedPM."""
_PRIVATE = {
    "model.init": "kaiming",
    "local.lr_decay": 1.0,
    "aggregation.discount": 0.0,
    "aggregator": rule,
}
PRIVATE: Mapping[str, Mapping[str, Any]] = {
    "example": {**_PRIVATE, "local.lr": noisy_rate, "fedpm.forward": forward, "codec": "shared-randomness"},
    # its coder keeps samples random, and they are what protects
    "client": {**_PRIVATE, "local.lr": 0.1, "fedpm.forward": "sampled", "codec": "side-information"},
}
"""The same with privacy, by its unit."""
