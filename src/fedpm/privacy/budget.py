"""A training run's privacy: what its settings mean, what they cost, and when the budget is spent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fedpm.config import Config
from fedpm.data.datasets import Shard, to_input
from fedpm.errors import ConfigError
from fedpm.experiment.participation import participants
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.accounting import Cost, clip_for, noise_for
from fedpm.training.private import Private, steps_of_round

CLIP = 0.01
"""Gradients of examples are longer than this in the project's networks, so that each counts the same."""
ADJACENCY = {
    "example": "one example of one client is added or removed",
    "client": "one client holds its data, or none and then uploads a sample of the broadcast",
}


def most_rounds(config: Config) -> int:
    """Return in how many rounds the client that is drawn most takes part, if all rounds are run."""
    if config.clients.per_round == config.clients.total:
        return config.rounds
    counts = Counter(client for round in range(1, config.rounds + 1) for client in participants(config, round))
    return max(counts.values())


def settled(config: Config) -> Config:
    """Return the configuration with noise and clip in place of ``auto``; it depends on no data."""
    privacy = config.privacy
    if privacy.unit == "none" or privacy.epsilon is None:
        return config
    update: dict[str, Any] = {}
    if privacy.unit == "client":
        update["noise"] = "auto"  # there is none
        if privacy.clip == "auto":
            update["clip"] = clip_for(privacy.epsilon, privacy.delta, most_rounds(config))
    else:
        steps = steps_of_round(config.local.epochs, privacy.sampling_rate) * most_rounds(config)
        if privacy.noise == "auto":
            update["noise"] = noise_for(privacy.epsilon, privacy.delta, steps, privacy.sampling_rate)
        if privacy.clip == "auto":
            update["clip"] = CLIP
    return config.model_copy(update={"privacy": privacy.model_copy(update=update)})


def private_of(config: Config) -> Private | None:
    """Return what clients do, for a settled configuration."""
    privacy = config.privacy
    if privacy.unit == "none":
        return None
    noise = 0.0 if privacy.noise == "auto" else privacy.noise
    return Private(privacy.unit, float(privacy.clip), noise, privacy.sampling_rate, privacy.secret)


def cost_of(config: Config) -> Cost:
    """Return what a round costs a client, for a settled configuration with privacy."""
    privacy = config.privacy
    if privacy.unit == "client":
        return Cost("client", privacy.delta, clip=float(privacy.clip))
    steps = steps_of_round(config.local.epochs, privacy.sampling_rate)
    return Cost("example", privacy.delta, steps, float(privacy.noise), privacy.sampling_rate)


def account_of(config: Config) -> dict[str, Any]:
    """Return what a configuration costs: its settings filled in, and ε after some numbers of rounds."""
    config = settled(config)
    privacy, cost, most = config.privacy, cost_of(config), most_rounds(config)
    affordable = cost.rounds_within(float(privacy.epsilon or 0), most)
    steps = {"steps of a round": cost.steps, "sampling rate": cost.sampling_rate, "noise multiplier": cost.noise}
    marks = sorted({1, *(max(1, round(most * part / 4)) for part in range(1, 5)), max(1, affordable)})
    return {
        "protects": f"{privacy.unit}: {ADJACENCY[privacy.unit]}",
        **(steps if privacy.unit == "example" else {}),
        "clip": float(privacy.clip),
        "delta": privacy.delta,
        "budget": privacy.epsilon,
        "rounds of the client drawn most": f"{most} of {config.rounds}",
        "rounds it can take part in": affordable,
        "epsilon": cost.epsilon(affordable),
        "after": {str(mark): cost.epsilon(mark) for mark in marks},
    }


class Ledger:
    """What a run has spent: ε of the client that took part most. Without privacy it allows all and says nothing.

    A client's data are touched only in rounds that it takes part in, and those are counted whether or not its upload
    arrived. That clients are drawn at random is not used to claim less: the server sees who takes part.
    """

    def __init__(self, config: Config, rounds: Iterable[Sequence[int]] = ()) -> None:
        self._privacy = config.privacy
        self._cost = None if config.privacy.unit == "none" else cost_of(config)
        self._rounds = Counter(client for clients in rounds for client in clients)

    def affords(self, clients: Sequence[int]) -> bool:
        """Return whether the budget allows a round with these clients."""
        if self._cost is None or self._privacy.epsilon is None:
            return True
        return self._cost.epsilon(1 + max(self._rounds[client] for client in clients)) <= self._privacy.epsilon

    def charge(self, clients: Sequence[int]) -> dict[str, float]:
        """Count a round, and return ε so far for its record."""
        self._rounds.update(clients)
        return {} if self._cost is None else {"epsilon": self._spent()}

    def statement(self) -> dict[str, Any]:
        """Return the guarantee, for summary and model file."""
        if self._cost is None:
            return {}
        privacy = self._privacy
        return {
            "privacy": {
                "unit": privacy.unit,
                "adjacency": ADJACENCY[privacy.unit],
                "epsilon": self._spent(),
                "delta": privacy.delta,
                "budget": privacy.epsilon,
                "secret": privacy.secret,
            }
        }

    def _spent(self) -> float:
        return 0.0 if self._cost is None else self._cost.epsilon(max(self._rounds.values(), default=0))


def check_private(config: Config, masked: MaskedNetwork, train: Shard, sizes: Sequence[int]) -> None:
    """Refuse what would make the guarantee false in network and data, and a budget too small for one round."""
    privacy = config.privacy
    if privacy.unit == "none":
        return
    remedy = "use conv4, conv6, conv10, or norm layers such as GroupNorm"
    if masked.stats:
        raise ConfigError(
            f"privacy.unit = {privacy.unit!r}: statistics of the norm layers ({', '.join(masked.stats)}) would leave "
            f"clients without noise; {remedy}"
        )
    if privacy.unit == "example" and _mixes(masked, train):
        raise ConfigError(
            "privacy.unit = 'example': the network's output for an example changes with the others in its batch, so "
            f"that the part of one example cannot be bounded; {remedy}"
        )
    count, what = (max(sizes), "examples of a client") if privacy.unit == "example" else (len(sizes), "clients")
    if privacy.delta * count >= 1:
        raise ConfigError(
            f"privacy.delta = {privacy.delta}: should be below 1/{count}, one over the {what}; "
            "otherwise publishing one of them outright would count as private"
        )
    if not Ledger(config).affords(participants(config, 1)):
        raise ConfigError(
            f"privacy.epsilon = {privacy.epsilon}: one round alone costs {cost_of(config).epsilon(1):.3g}; "
            "raise privacy.noise, lower local.epochs or privacy.clip of a client, or leave them 'auto'"
        )


def check_resumable(config: Config) -> None:
    """Refuse to go on where a round that was cut short would be released a second time."""
    if config.privacy.secret:
        raise ConfigError(
            "privacy.secret = true: a round that was cut short would be repeated with fresh noise, and so be released "
            "twice and counted once; start a new run, and add up what both cost"
        )


def _mixes(masked: MaskedNetwork, train: Shard) -> bool:
    """Return whether an example's output in training depends on the examples beside it."""
    x = to_input(train.x[np.arange(4) % len(train)], torch.device("cpu"))
    weights = {name: view * 0.5 for name, view in masked.views(masked.weights(0)).items()}
    outputs = []
    masked.net.train()
    for batch in (x, torch.cat([x[:1], x[1:].flip(-1) if x.is_floating_point() else x[1:].roll(1, -1)])):
        with torch.random.fork_rng([]), torch.inference_mode():
            torch.default_generator.manual_seed(0)
            rest = masked.surroundings(torch.tensor(masked.initial_stats()))
            outputs.append(masked.forward(weights, rest, batch)[0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6)
