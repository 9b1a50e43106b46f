"""Models of weights: files that know their network, run folders, and what is wrong with others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ArtifactError, ConfigError
from fedpm.model.nets import build
from fedpm.model.weights import Weights, WeightsHeader, open_model
from tests.command import fedpm as command
from tests.model.test_file import some_model
from tests.model.test_masking import Tied
from tests.small import small_config, small_net

X = torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A network of float32, exported from a mask."""
    some_model().save(tmp_path / "model.fedpm")
    file = tmp_path / "model.safetensors"
    done = command("model", "export", tmp_path / "model.fedpm", "--torch", file)
    assert done.code == 0, done.stderr
    return file


def test_a_class_in_the_place_of_a_network_is_told(weights: Path) -> None:
    kind: Any = nn.Linear
    with pytest.raises(ConfigError, match="net: Linear is a class; give a network of it"):
        fedpm.load(weights, net=kind)


def test_a_folder_of_runs_is_told_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    some_model().save(tmp_path / "run" / "model.fedpm")
    with pytest.raises(ArtifactError, match=rf"give a run in it, such as {tmp_path / 'run'}$"):
        open_model(tmp_path)


def test_weights_load_with_and_without_fedpm(weights: Path) -> None:
    expected = some_model().module()(X)
    net = build("conv4-slim", (1, 8, 8), 10)
    net.load_state_dict(load_file(weights))
    assert torch.equal(net(X), expected)
    module = fedpm.load(weights)
    assert torch.equal(module(X), expected)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_run_folder_stands_for_its_model(weights: Path) -> None:
    folder = weights.parent
    assert open_model(folder).name == "model.fedpm"
    (folder / "model.fedpm").unlink()
    assert open_model(folder).name == "model.safetensors"
    weights.unlink()
    with pytest.raises(ArtifactError, match="a run writes it when it ends"):
        open_model(folder)


def test_the_model_commands_take_a_run_folder_of_weights(data: Dataset, tmp_path: Path) -> None:
    settings = {"model": {"name": "conv4-slim"}, "clients": {"total": 2}, "local": {"epochs": 1}}
    config = small_config(algorithm="fedavg", rounds=1, data={"train_examples": 60}, **settings)
    result = fedpm.run(config, out=tmp_path / "run")
    seen = command("model", "inspect", tmp_path / "run")
    assert seen.code == 0, seen.stderr
    assert "network: conv4-slim, 117,754 parameters\n" in seen.stdout
    assert "smaller than" not in seen.stdout
    scored = command("model", "eval", tmp_path / "run")
    assert f"accuracy {result.summary['accuracy']:.4f}" in scored.stdout
    exported = command("model", "export", tmp_path / "run", "--torch", tmp_path / "out.safetensors")
    assert exported.code == 0, exported.stderr
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    packed = command("model", "eval", tmp_path / "run", "--packed")
    assert (packed.code, packed.stderr) == (
        2,
        "fedpm: weights cannot be packed: 2 bits a weight are enough only for a mask\n",
    )


def test_weights_of_your_own_network_need_it(data: Dataset, tmp_path: Path) -> None:
    config = small_config(algorithm="fedavg", rounds=1, local={"epochs": 1})
    result = fedpm.run(config, net=small_net(), data=data, out=tmp_path / "run")
    x = torch.from_numpy(data.test.x[:5])
    assert torch.equal(fedpm.load(tmp_path / "run", net=small_net())(x), result.model(x))
    with pytest.raises(ArtifactError, match="of a network of your own"):
        fedpm.load(tmp_path / "run")
    with pytest.raises(ArtifactError, match="of another network"):
        fedpm.load(tmp_path / "run", net=nn.Linear(2, 2))


def test_layers_that_share_weights_share_them_again() -> None:
    about = some_model().header.model_dump(include=set(WeightsHeader.model_fields))
    trained = Tied()
    loaded = Weights.of(trained, **about).module(Tied())
    assert loaded.out.weight is loaded.embed.weight
    assert torch.equal(loaded.state_dict()["out.weight"], trained.out.weight)


def test_wrong_files_are_one_sentence(weights: Path) -> None:
    opened = Weights.open(weights)
    for header, words in (({"network": "conv9000"}, "cannot be built"), ({"network": "conv6-slim"}, "another network")):
        with pytest.raises(ArtifactError, match=words):
            replace(opened, header=opened.header.model_copy(update=header)).module()
    with pytest.raises(ConfigError, match="cannot be packed"):
        opened.module(packed=True)
    save_file({"x": torch.zeros(2)}, weights)
    with pytest.raises(ArtifactError, match="do not say which network they are of"):
        Weights.open(weights)
    weights.write_bytes(weights.read_bytes()[:20])
    with pytest.raises(ArtifactError, match="cut or damaged"):
        Weights.open(weights)
    with pytest.raises(ArtifactError, match="there is no such file or folder"):
        Weights.open(weights.with_name("missing.safetensors"))
