"""Every parameter is masked, trained or frozen, and networks of all three kinds learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

import fedpm
from fedpm.data.datasets import Dataset, Shard
from fedpm.errors import ConfigError
from fedpm.model.kinds import Kinds, kinds_of
from fedpm.model.masking import MaskedNetwork
from tests.small import small_config


def kinds(net: nn.Module, **selectors: Any) -> Kinds:
    return kinds_of(net, 1.0, **selectors)


def masked(net: nn.Module) -> dict[str, float]:
    return {part.name: part.fan_in for part in kinds(net).masked}


def test_what_no_mask_suits_can_be_frozen_by_one_key(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.PReLU(), nn.Linear(8, 10))
    config = small_config(rounds=1, local={"epochs": 1}, model={"affine": "frozen"})
    result = fedpm.run(config, net=net, data=data)
    kinds = {layer["name"]: layer["kind"] for layer in result.summary["layers"]}
    assert [name for name, kind in kinds.items() if kind == "frozen"] == ["2.weight", "2.bias", "3.weight"]
    assert "trained" not in kinds.values()


class Recurrent(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.GRU(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.rows(x.flatten(1, 2))[0]
        return self.head(states[:, -1])  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Rows of an image as words, with a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        self.positions = nn.Parameter(torch.zeros(8, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.embed(x.flatten(1, 2)) + self.positions
        return self.head(self.encoder(words).mean(1))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A residual block with affine norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.PReLU())
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(torch.relu(x + self.norm(self.block(x))))  # type: ignore[no-any-return]


def test_recurrent_matrices_are_masked_by_their_inputs() -> None:
    found = masked(nn.LSTM(3, 5, num_layers=2, bidirectional=True, proj_size=2))
    assert found["weight_ih_l0"] == 3
    assert found["weight_hh_l0"] == 2
    assert found["weight_hr_l0_reverse"] == 5
    assert found["weight_ih_l1"] == 4
    assert found["bias_hh_l1"] == 5
    assert kinds(nn.GRU(3, 5)).trained == []


def test_attention_is_masked_and_what_is_no_layer_is_trained() -> None:
    found = kinds(Attention())
    assert {"encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.self_attn.in_proj_bias"} <= {
        part.name for part in found.masked
    }
    norms = [f"encoder.layers.0.norm{n}.{own}" for n in (1, 2) for own in ("weight", "bias")]
    assert found.trained == ["positions", *norms]
    wide = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True)
    assert masked(wide)["k_proj_weight"] == 3
    assert kinds(wide).trained == ["bias_k", "bias_v"]


def test_of_a_parametrised_weight_the_direction_is_masked_and_the_length_trained() -> None:
    layer: nn.Linear = parametrizations.weight_norm(nn.Linear(3, 4))
    net = nn.Sequential(layer)
    assert masked(net) == {"0.bias": 3, "0.parametrizations.weight.original1": 3}
    assert kinds(net).trained == ["0.parametrizations.weight.original0"]
    network = MaskedNetwork(net)
    module = network.module(network.weights(0), network.initial_stats())
    sizes = module(torch.eye(3)) - module(torch.zeros(1, 3))
    assert torch.allclose(sizes.norm(dim=0), layer.weight.norm(dim=1), atol=1e-5)


def test_to_look_at_a_parametrised_weight_changes_nothing() -> None:
    net = nn.Sequential(nn.Flatten(), parametrizations.spectral_norm(nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, 10))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    network = MaskedNetwork(net)
    assert [part.name for part in network.parts][:2] == ["1.bias", "1.parametrizations.weight.original"]
    again = MaskedNetwork(network.whole())  # whose masked values are not there
    assert again.fingerprint(0) == network.fingerprint(0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.slow
def test_the_transposed_linear_layers_of_gpt2_are_masked() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    small = {"vocab_size": 17, "n_embd": 6, "n_layer": 1, "n_head": 2, "n_positions": 8}
    found = masked(transformers.GPT2Model(transformers.GPT2Config(**small, bos_token_id=0, eos_token_id=0)))
    assert found["h.0.attn.c_attn.weight"] == found["h.0.attn.c_attn.bias"] == 6
    assert found["h.0.mlp.c_proj.weight"] == 24


def test_names_patterns_and_classes_say_otherwise() -> None:
    net = Attention()
    assert "positions" in kinds(net, frozen=["positions"]).frozen
    assert kinds(net, frozen=[nn.LayerNorm]).trained == ["positions"]
    found = kinds(net, trained=["encoder.*"], frozen=["encoder.layers.0.norm1"], masked=["head"])
    assert [part.name for part in found.masked] == ["embed.weight", "embed.bias", "head.weight", "head.bias"]
    assert found.frozen == ["encoder.layers.0.norm1.weight", "encoder.layers.0.norm1.bias"]


def test_one_name_or_class_need_be_no_list() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    assert kinds_of(net, 1.0, trained="1") == kinds_of(net, 1.0, trained=["1"])
    assert kinds_of(nn.Sequential(nn.Conv1d(1, 1, 1), net), 1.0, frozen=nn.Conv1d).frozen == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("net", "selectors", "sentence"),
    [
        (ResNet(), {"masked": ["stem.2"]}, r"cannot mask stem\.2\.weight \(PReLU\): only .* leave it to be"),
        (ResNet(), {"frozen": ["nonsense", nn.GRU]}, "GRU, nonsense: the network has no such"),
        (nn.Sequential(nn.LazyLinear(4)), {}, r"0\.weight \(LazyLinear\) has no shape yet: call the network once"),
        (nn.LayerNorm(3), {}, "no parameter of the network is masked"),
        (torch.jit.script(nn.Linear(3, 3)), {}, "a scripted network cannot be taken apart; give the module"),
        (weight_norm(nn.Linear(3, 3)), {}, r"cannot be copied \(Only Tensors .*use those in torch.nn.utils.param"),
    ],
)
def test_what_cannot_be_is_one_sentence(net: nn.Module, selectors: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MaskedNetwork(net, **selectors)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedpm", "eden"])
@pytest.mark.parametrize("net", [Recurrent(), Attention(), ResNet()], ids=["gru", "transformer", "resnet"])
def test_networks_of_all_kinds_learn(net: nn.Module, algorithm: str, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rounds": 3,
        "local": {"epochs": 4, "batch_size": 32},
        "clients": {"total": 2},
        "algorithm": algorithm,
    }
    result = fedpm.run(small_config(**settings), net=net, data=data, out=tmp_path / "run")
    assert result.rounds[-1]["accuracy"] > 0.5
    x = torch.from_numpy(data.test.x[:7])
    loaded = fedpm.load(tmp_path / "run" / result.file.name, net=net)
    assert torch.equal(loaded(x), result.model(x))
    for name in kinds(net).trained:
        assert not torch.equal(result.model.get_parameter(name), net.get_parameter(name)), "it was trained"
    tensors = MaskedNetwork(net).stats_size
    assert result.rounds[0]["uplink_bytes"] > tensors / 2 * len(result.rounds[0]["clients"]), "floats are counted"


@pytest.mark.slow
def test_a_hugging_face_network_learns(data: Dataset, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

    def words(part: Shard) -> tuple[Any, Any]:
        few = part.y < 2
        ink = (part.x[few, 0] + 1).sum(1)  # of each column, 0 to 16
        return ink.astype(np.int64), part.y[few]

    config = transformers.BertConfig(
        vocab_size=17, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config)
    own = fedpm.dataset(words(data.train), words(data.test))
    settings = {"rounds": 4, "local": {"epochs": 5, "batch_size": 32}, "clients": {"total": 2}, "data": {}}
    result = fedpm.run(small_config(**settings), net=net, data=own, out=tmp_path / "run")
    assert result.rounds[-1]["accuracy"] > 0.75  # of two classes
    x = torch.from_numpy(own.test.x[:7])
    loaded = fedpm.load(tmp_path / "run" / "model.fedpm", net=net)
    assert torch.equal(loaded(x).logits, result.model(x).logits)


def test_tied_trained_parameters_stay_tied() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.scale, self.again = nn.Linear(2, 2), nn.PReLU(), nn.PReLU()
            self.again.weight = self.scale.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(-self.scale(self.first(x)))  # type: ignore[no-any-return]

    network = MaskedNetwork(Twice())
    assert network.trained == ("scale.weight",)
    module = network.module(network.weights(0), np.array([0.5], np.float32))
    assert module.get_parameter("again.weight") is module.get_parameter("scale.weight")
    assert module.get_parameter("again.weight").item() == 0.5


class Viewing(nn.Module):
    """A network of colour images that flattens by ``view``, as many do: this needs ordinary strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).view(len(x), -1))  # type: ignore[no-any-return]


def test_a_network_of_colour_images_may_flatten_by_view(data: Dataset) -> None:
    def coloured(shard: Shard) -> tuple[Any, Any]:
        return shard.x.repeat(3, axis=1), shard.y

    dataset = fedpm.dataset(train=coloured(data.train), test=coloured(data.test))
    assert fedpm.run(small_config(rounds=1), net=Viewing(), data=dataset).rounds
