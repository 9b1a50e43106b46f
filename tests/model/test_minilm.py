import numpy as np
import pytest
import torch

from fedpm.errors import DataError
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork
from fedpm.model.minilm import BLOCKS, RENAMED, minilm
from fedpm.model.pretrained import named
from fedpm.model.variants import VARIANTS, variant

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
