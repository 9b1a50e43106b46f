"""Four tasks beside classification of images: numbers, several labels, text, and a label for every pixel.

Run it with: python examples/tasks.py. It takes about half a minute, and all data come with Python or with fedpm.
"""

import argparse
import inspect
import textwrap
from pydoc_data.topics import topics
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import fedpm

SEGMENTS = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011"
"""Which of the seven lines of a pocket calculator's display each digit lights."""
Array = npt.NDArray[Any]


def regression() -> fedpm.Result:
    """From the upper half of a digit, predict how much ink the lower half has."""
    digits = fedpm.load_dataset("digits")

    def halves(x: Array) -> tuple[Array, Array]:
        return x[:, 0, :4].reshape(len(x), -1), x[:, 0, 4:].mean((1, 2)) * 5

    data = fedpm.dataset(train=halves(digits.train.x), test=halves(digits.test.x))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    settings: dict[str, Any] = {"rounds": 8, "clients": {"total": 3}, "local": {"epochs": 5}}
    # the last layer is trained as floats, from the values it has: a mask over random weights hits numbers less exactly
    return fedpm.run(net=net, data=data, trained=["2"], loss="mse", metrics=["r2", "mae"], **settings)


def labels() -> fedpm.Result:
    """Of a digit, tell which of the seven lines of a display it would light: several labels an image."""
    lines = np.array([[line == "1" for line in digit] for digit in SEGMENTS.split()])
    digits = fedpm.load_dataset("digits")
    train, test = ((part.x, lines[part.y]) for part in (digits.train, digits.test))
    data = fedpm.dataset(train=train, test=test, classes=tuple("abcdefg"))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 7))
    settings: dict[str, Any] = {"rounds": 6, "clients": {"total": 3}, "local": {"epochs": 3}}
    return fedpm.run(net=net, data=data, loss="binary", metrics=["f1", "accuracy"], **settings)


class Reader(nn.Module):
    """Looks up pairs of letters, whatever their place."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.EmbeddingBag(1024, 96, mode="mean")
        self.body = nn.Linear(96, 96)
        self.head = nn.Linear(96, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for prose and for code."""
        pairs = (31 * x[:, 1:] + x[:, :-1]) % 1024
        scores: torch.Tensor = self.head(torch.relu(self.body(4 * self.pairs(pairs))))
        return scores


def text() -> fedpm.Result:
    """Of a line of Python's own manual and modules, tell whether it is prose or code; each client has one module."""
    prose = [line for topic in list(topics.values())[:12] for line in textwrap.wrap(topic, 32)][:900]
    modules: list[ModuleType] = [argparse, inspect, textwrap]
    clients = {}
    for number, module in enumerate(modules):
        code = [line for line in inspect.getsource(module).splitlines() if len(line) > 24][: 300 - 80 * number]
        mine = prose[number::3][: len(code)]
        clients[module.__name__] = (letters(mine + code), ["prose"] * len(mine) + ["code"] * len(code))
    data = fedpm.federation(clients, test=0.2)
    settings: dict[str, Any] = {"rounds": 6, "local": {"epochs": 5, "batch_size": 64}}
    return fedpm.run(net=Reader(), data=data, **settings)


def letters(lines: list[str]) -> npt.NDArray[np.int64]:
    """Return lines as numbers of letters, all as long as 32."""
    codes = [line.strip()[:32].ljust(32).encode("ascii", "replace") for line in lines]
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, 32).astype(np.int64)


def segmentation() -> fedpm.Result:
    """Of a noisy image of a digit, tell for every pixel whether it is ink."""
    digits, noise = fedpm.load_dataset("digits"), np.random.default_rng(0)

    def noisy(x: Array) -> tuple[Array, Array]:
        return (x + 0.7 * noise.normal(size=x.shape)).astype(np.float32), x[:, 0] > 0

    data = fedpm.dataset(train=noisy(digits.train.x[:600]), test=noisy(digits.test.x))
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 1, 1)
    )
    settings: dict[str, Any] = {"rounds": 6, "clients": {"total": 2}, "local": {"epochs": 4, "batch_size": 64}}
    return fedpm.run(net=net, data=data, loss="binary", metrics=["f1", "accuracy"], **settings)


def main() -> None:
    """Do all four."""
    for task in (regression, labels, text, segmentation):
        summary = task().summary
        figures = summary.get("metrics") or {"accuracy": summary["accuracy"]}
        shown = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        print(f"{task.__name__}: {shown}; {summary['uplink_bpp']:.3f} bits per parameter up")


if __name__ == "__main__":
    main()
