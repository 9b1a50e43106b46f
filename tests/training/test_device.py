"""What must hold on any device: run on each that is here, skipped with the reason on the others."""

from typing import Any

import numpy as np
import pytest
import torch

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError
from fedpm.training.device import choose_device, choose_precision
from tests.small import small_config, small_net


def usable(name: str) -> str:
    """Return why a device cannot be used here, nothing if it can."""
    try:
        choose_device(name)
    except ConfigError as error:
        return str(error)
    return ""


DEVICES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why := usable(name)), reason=why or "it can be used"))
    for name in ("cpu", "cuda", "mps")
]
on_every_device = pytest.mark.parametrize("device", DEVICES)


def run(device: str, data: Dataset, **settings: Any) -> fedpm.Result:
    config = small_config(device=device, precision="float32", **settings)
    return fedpm.run(config, net=small_net(), data=data)


@on_every_device
@pytest.mark.parametrize("algorithm", ["fedpm", "fedmask", "fedavg"])
def test_a_run_on_a_device_repeats_itself(device: str, algorithm: str, data: Dataset) -> None:
    first, again = (run(device, data, algorithm=algorithm, rounds=1) for _ in range(2))
    assert first.file.to_bytes() == again.file.to_bytes()


@on_every_device
def test_what_a_device_learns_is_what_the_cpu_learns(device: str, data: Dataset) -> None:
    here, cpu = run(device, data), run("cpu", data)
    for mine, reference in zip(here.rounds, cpu.rounds, strict=True):
        assert mine["clients"] == reference["clients"]
        assert mine["uplink_bpp"] == pytest.approx(reference["uplink_bpp"], rel=0.05)
        assert mine["accuracy"] == pytest.approx(reference["accuracy"], abs=0.1)


@on_every_device
def test_a_model_from_a_device_predicts_the_same_on_the_cpu(device: str, data: Dataset) -> None:
    model = run(device, data, rounds=1).file.module(small_net())
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    images = torch.from_numpy(data.test.x[:20])
    with torch.no_grad():
        moved = model(images), model.to(choose_device(device))(images.to(choose_device(device))).cpu()
    assert np.allclose(moved[0].numpy(), moved[1].numpy(), rtol=1e-3, atol=1e-4)


@on_every_device
def test_every_device_has_a_precision(device: str) -> None:
    assert choose_precision("auto", choose_device(device)) in (torch.float32, torch.bfloat16)
