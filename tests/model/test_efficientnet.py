from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from fedpm.errors import DataError
from fedpm.model.efficientnet import efficientnet
from fedpm.model.export import to_onnx
from fedpm.model.masking import MaskedNetwork
from fedpm.model.pretrained import named
from fedpm.model.variants import VARIANTS, variant

OUTER = {"0.2": "_conv_stem", "0.3": "_bn0", "17.0": "_conv_head", "17.1": "_bn1"}
IMAGES = torch.linspace(-9, 9, 2 * 3 * 32 * 32).sin().reshape(2, 3, 32, 32)


def published(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the values under the names that they have in the published file, with a head of its own."""
    found = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    for name, value in net.state_dict().items():
        place, rest = name.split(".", 1)
        layer, last = name.rsplit(".", 1)
        if layer in OUTER:
            found[f"{OUTER[layer]}.{last}"] = value
        elif place != "18":
            found[f"_blocks.{int(place) - 1}._{rest}"] = value
    return found


def test_every_value_of_the_published_file_has_its_place() -> None:
    net = efficientnet(10).eval()
    again = efficientnet(10, published(net)).eval()
    with torch.inference_mode():
        assert torch.equal(net[:18](IMAGES), again[:18](IMAGES))
    assert not again(IMAGES).any(), "a new head starts at 0"


def test_a_stride_leaves_out_the_first_pixel_as_where_the_values_were_trained() -> None:
    stem = cast(nn.Sequential, efficientnet(10)[0])[1:3]
    weight = stem.get_parameter("2.weight")
    with torch.no_grad():
        weight.fill_(0)
        weight[:, :, 0, 0] = 1
    image = torch.arange(16.0).reshape(1, 1, 4, 4).expand(1, 3, 4, 4)
    assert torch.equal(stem(image)[0, 0], 3 * image[0, 0, ::2, ::2])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("efficientnet-lite0", 1_480_960),
        ("efficientnet-lite0-head", 12_810),
        ("efficientnet-lite0-lora4", 28_416),
        ("efficientnet-lite0-lora16", 113_664),
        ("efficientnet-lite0-ffa16", 65_536),
    ],
)
def test_what_is_trained_of_each_variant(name: str, parameters: int) -> None:
    kinds = VARIANTS[name]
    net = variant(name, 10)
    network = MaskedNetwork(net, weights="given", frozen=kinds.frozen, trained=kinds.trained)
    assert network.size == parameters
    assert network.stats_size == (12_810 if kinds.trained else 0), "statistics of frozen norm layers do not travel"


def test_lora_beside_1x1_convolutions_starts_at_the_base() -> None:
    net = efficientnet(10)
    beside = cast(nn.Sequential, variant("efficientnet-lite0-lora4", 10, published(net)).eval())
    with torch.inference_mode():
        assert torch.equal(beside[:18](IMAGES), net.eval()[:18](IMAGES))
        beside.get_parameter("17.0.up.weight").fill_(0.1)
        assert not torch.equal(beside[:18](IMAGES), net[:18](IMAGES))


def test_without_the_published_values_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPM_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"EfficientNet-Lite0, a pretrained network is not in .* get efficientnet-lite0"
    ):
        named("efficientnet-lite0", (3, 32, 32), 10)
    folder = tmp_path / "efficientnet-lite0"
    folder.mkdir()
    torch.save(published(efficientnet(10)), folder / VARIANTS["efficientnet-lite0"].base.file)
    with pytest.raises(DataError, match=r"does not hold the published values \(wrong checksum\)"):
        named("efficientnet-lite0", (3, 32, 32), 10)


@pytest.mark.slow
def test_the_onnx_export_agrees(tmp_path: Path) -> None:
    net = list(efficientnet(10))
    # blocks of each kind, and none twice; a new head would make every output 0
    short = nn.Sequential(*net[:5], nn.Conv2d(40, 320, 1), net[17]).eval()
    assert to_onnx(short, (3, 32, 32), "float32", tmp_path / "m.onnx") < 1e-4


@pytest.mark.slow
def test_published_values_give_the_features_of_the_published_network() -> None:
    try:
        net = cast(nn.Sequential, named("efficientnet-lite0", (3, 32, 32), 10).net.eval())
    except DataError as error:
        pytest.skip(str(error))
    image = torch.linspace(-9, 9, 3 * 64 * 64).sin().reshape(1, 3, 64, 64)
    with torch.inference_mode():
        features = net[:18](image)[0]
    expected = torch.tensor([0.0, 0.0, 3.2004, 0.2917, 0.0, 2.4381])  # of the package efficientnet_lite_pytorch
    torch.testing.assert_close(features[:6], expected, rtol=1e-3, atol=1e-3)
