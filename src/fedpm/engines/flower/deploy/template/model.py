"""A network of your own: set app.network = "model:network" to use it."""

from torch import nn


def network() -> nn.Module:
    """Return the network; server and clients all make the same, and the seed draws its frozen weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
