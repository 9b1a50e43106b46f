import pytest
import torch

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError
from fedpm.model.lora import with_lora
from tests.model.test_pretrained import base
from tests.small import small_config


@pytest.mark.parametrize(("ffa", "floats"), [([], 2 * 40 * 3), (["*.down.*"], 40 * 3)])
def test_lora_starts_at_the_base_and_sends_only_its_own(data: Dataset, ffa: list[str], floats: int) -> None:
    net, x = with_lora(base(), ["5"], rank=3).eval(), torch.from_numpy(data.test.x)
    assert torch.equal(net(x), base()(x))
    config = small_config(algorithm="fedavg", rounds=2, local={"lr": 0.01, "float_lr": 0.01, "batch_size": 16})
    result = fedpm.run(config, net=net, weights="given", data=data, frozen=["1", "2", "*.layer.*", *ffa], trained=["8"])
    assert result.summary["parameters"] == floats
    assert result.summary["accuracy"] > float((base()(x).argmax(1).numpy() == data.test.y).mean()) + 0.1
    assert torch.equal(result.model.get_parameter("5.layer.weight"), base().get_parameter("5.weight"))


def test_a_layer_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="LoRA for 6: the network has no such linear layer"):
        with_lora(base(), ["6"], rank=3)
