"""What a masked training step costs beside a dense one of the same network."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.experiments import NETWORKS, fedpm_of, noise_experiment
from benchmarks.timing import Row, timed
from fedpm.aggregation.posterior import Posterior
from fedpm.data.datasets import to_input
from fedpm.experiment.build import Experiment
from fedpm.methods.mask.fedpm import CLAMP
from fedpm.rng import Streams
from fedpm.training.device import threads
from fedpm.training.noise import Noise
from fedpm.training.optimiser import Optimiser
from fedpm.training.scores import SampledWeights


def run() -> list[Row]:
    """Measure every network."""
    with threads(1):
        return [measure(network) for network in NETWORKS]


def measure(network: str) -> Row:
    """Return the ratio of the steps, and where the time of a masked one goes, in ms of one core."""
    parts, masked, dense = steps(noise_experiment(network, clients=1, steps=1))
    for step in (masked, dense):
        step()  # the optimiser's state is made in the first
    seconds = timed({"masked": masked, "dense": dense, **parts}, repeats=9, cpu=True)
    return {
        "network": network,
        "masked / dense": seconds["masked"] / seconds["dense"],
        **{f"{name} ms": 1000 * value for name, value in seconds.items()},
    }


def steps(experiment: Experiment) -> tuple[dict[str, Callable[[], object]], Callable[[], None], Callable[[], None]]:
    """Return the parts of a masked step, a whole one, and a dense one; each as training does it."""
    network, local = experiment.method.network, fedpm_of(experiment).trainer.local
    shard = experiment.clients.train
    x, y = to_input(shard.x, local.device), torch.from_numpy(shard.y)
    rest = network.surroundings(torch.from_numpy(network.initial_stats()))
    theta = torch.from_numpy(Posterior.initial(network, 0).theta.floats().clip(CLAMP, 1 - CLAMP))
    sampled = SampledWeights(network, network.weights(0), theta, local.gradient)
    adam = Optimiser("adam", sampled.scores.values(), local.rate(1, len(shard)))
    noise = Noise(Streams(0), "local masks", local.device)
    flat = torch.from_numpy(network.dense_weights(0))
    weights = {name: view.detach().requires_grad_() for name, view in network.views(flat).items()}
    plain = Optimiser("adam", weights.values(), 0.001)
    network.net.train()

    def backward(values: dict[str, torch.Tensor]) -> None:
        with torch.autocast(local.device.type, local.precision, enabled=local.precision != torch.float32):
            loss = F.cross_entropy(network.forward(values, rest, x), y)
        loss.backward()  # type: ignore[no-untyped-call]

    def sample() -> None:
        sampled.sample(noise.uniform(network.size))

    def masked() -> None:
        sample()
        backward(sampled.weights)
        sampled.backpropagate()
        adam.step()
        for weight in sampled.weights.values():
            weight.grad = None

    def dense() -> None:
        plain.zero_grad()
        backward(weights)
        plain.step()

    def gradients() -> None:
        for weight in sampled.weights.values():
            weight.grad = torch.empty_like(weight)
        sampled.backpropagate()

    parts: dict[str, Callable[[], object]] = {
        "random bits": lambda: noise.uniform(network.size),
        "random bits and mask": sample,
        "gradient": gradients,
        "optimiser": adam.step,
    }
    return parts, masked, dense
