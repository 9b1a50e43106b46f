import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedpm
from fedpm.errors import ArtifactError, DataError
from fedpm.model import nets
from fedpm.model.export import to_onnx
from fedpm.model.masking import MaskedNetwork
from fedpm.model.minilm import BLOCKS, RENAMED, minilm
from fedpm.model.pretrained import named
from fedpm.model.variants import VARIANTS, variant
from tests.small import small_config

TOKENS = torch.tensor([[101, 7, 8, 102, 0, 0], [101, 7, 8, 9, 10, 102]])


def published(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the values under the names that they have in the published file."""
    own = {after: before for before, after in RENAMED.items() if after}
    found = {}
    for name, value in net.state_dict().items():
        place, rest = name.split(".", 1)
        if place == "0":
            found[f"embeddings.{rest}"] = value
        elif int(place) <= BLOCKS:
            layer, last = rest.rsplit(".", 1)
            found[f"encoder.layer.{int(place) - 1}.{own.get(layer, f'attention.self.{layer}')}.{last}"] = value
    return found | {"pooler.dense.bias": torch.zeros(1), "embeddings.position_ids": torch.zeros(1)}


def test_every_value_of_the_published_file_has_its_place_and_padding_counts_for_nothing() -> None:
    net = minilm(8).eval()
    again = minilm(8, published(net)).eval()
    with torch.inference_mode():
        assert torch.equal(net[:8](TOKENS), again[:8](TOKENS))
        torch.testing.assert_close(again[:8](TOKENS[:1]), again[:8](TOKENS[:1, :4]))
    assert not again(TOKENS).any(), "a new head starts at 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("minilm", 3_545_856), ("minilm-head", 3080), ("minilm-lora4", 55_296), ("minilm-ffa16", 110_592)],
)
def test_what_is_trained_of_each_variant(name: str, parameters: int) -> None:
    kinds = VARIANTS[name]
    network = MaskedNetwork(variant(name, 8), weights="given", frozen=kinds.frozen, trained=kinds.trained)
    assert network.size == parameters
    assert network.stats_size == (3080 if kinds.trained else 0)
    assert np.array_equal(network.dense_weights(0), network.weights(0).numpy())


def test_weights_can_be_loaded_into_a_variant_without_memory() -> None:
    with torch.device("meta"):
        empty = nets.build("minilm-lora4", (48,), 8)
    whole = variant("minilm-lora4", 8)
    empty.load_state_dict(whole.state_dict(), assign=True)
    assert torch.equal(empty.eval()(TOKENS), whole.eval()(TOKENS))


def test_without_its_values_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("FEDPM_DATA", str(tmp_path))
    with pytest.raises(DataError, match="run fedpm data get minilm"):
        named("minilm", (48,), 8)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fedpm.Result]:
    """Return a folder with base and model of a run on noise: MiniLM's size and form, and values of chance."""
    folder = tmp_path_factory.mktemp("text")
    torch.manual_seed(0)
    net, kinds = minilm(8), VARIANTS["minilm"]
    save_file(published(net), folder / "base.safetensors")
    rng = np.random.default_rng(0)
    (x, y), (more, labels) = ((rng.integers(1, 30_000, (n, 12)), np.arange(n) % 8) for n in (24, 8))
    local = {"epochs": 1, "batch_size": 8, "cache": True}
    config = small_config(rounds=2, clients={"total": 2}, data={"validation": 0.2}, local=local)
    data = fedpm.dataset((x, y), (more, labels))
    how: dict[str, Any] = {"weights": "given", "frozen": kinds.frozen, "trained": kinds.trained}
    return folder, fedpm.run(config, net=net, data=data, out=folder / "run", **how)


@pytest.mark.slow
def test_the_model_file_of_a_text_model_is_a_fiftieth_of_its_base_at_most(text_run: tuple[Path, fedpm.Result]) -> None:
    base = (text_run[0] / "base.safetensors").stat().st_size
    assert (text_run[0] / "run/model.fedpm").stat().st_size <= 0.02 * base


@pytest.mark.slow
def test_base_and_file_of_a_text_model_give_the_same_logits_in_another_process(
    text_run: tuple[Path, fedpm.Result], tmp_path: Path
) -> None:
    code = (
        "import sys, torch, fedpm; from safetensors.torch import load_file, save_file;"
        "from fedpm.model.minilm import minilm; torch.set_num_threads(1);"
        "model = fedpm.load(sys.argv[2], net=minilm(8, load_file(sys.argv[1])));"
        f"save_file({{'y': model(torch.tensor({TOKENS.tolist()}))}}, sys.argv[3])"
    )
    paths = [text_run[0] / "base.safetensors", text_run[0] / "run/model.fedpm", tmp_path / "y.safetensors"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert torch.equal(load_file(paths[2])["y"], text_run[1].model(TOKENS))


@pytest.mark.slow
def test_a_text_model_refuses_another_base_by_hash(text_run: tuple[Path, fedpm.Result]) -> None:
    values = load_file(text_run[0] / "base.safetensors")
    values["encoder.layer.0.output.dense.bias"][0] += 1
    with pytest.raises(ArtifactError, match=r"mask over Sequential with SHA-256 \w{64}, and .* load it with the base"):
        fedpm.load(text_run[0] / "run", net=minilm(8, values))


@pytest.mark.slow
def test_the_onnx_export_of_a_text_model_agrees(tmp_path: Path) -> None:
    net = list(minilm(8))
    one = nn.Sequential(*net[:2], net[BLOCKS + 1])  # the other blocks have its form; a new head makes every output 0
    assert to_onnx(one, (12,), "int64", tmp_path / "m.onnx") < 1e-4
