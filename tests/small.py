"""A federation small enough for a test: a linear network with one hidden layer on 300 of the digits."""

import torch
from torch import nn

from fedpm.config import Config, parse

torch.set_num_threads(1)  # what is trained here is too small to share, in programs that tests start too


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def small_config(**settings: object) -> Config:
    base = {"rounds": 3, "workers": 1, "clients": {"total": 4}, "local": {"epochs": 2}, "data": {"train_examples": 300}}
    return parse({**base, **settings})
