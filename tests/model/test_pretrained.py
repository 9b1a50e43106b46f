"""Masks over the values of a pretrained network."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset, load_dataset
from fedpm.errors import ArtifactError, ConfigError, WireError
from fedpm.experiment.build import build
from fedpm.methods.mask.fedpm import FedPM
from fedpm.model.export import to_onnx
from fedpm.model.file import Model
from fedpm.model.mask_coding import decode_final, encode_final
from fedpm.model.masking import MaskedNetwork
from fedpm.model.ternary import pack
from fedpm.rng import Streams
from tests.makers import make_fedpm
from tests.small import small_config


def untrained() -> nn.Sequential:
    """Return a network with a part of every kind: a lower layer, norms, a layer to mask, a head."""
    lower = (nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.1))
    return nn.Sequential(*lower, nn.Linear(40, 40), nn.LayerNorm(40), nn.ReLU(), nn.Linear(40, 10))


@cache
def base() -> nn.Sequential:
    """Return such a network, trained a little on the first five digits."""
    torch.manual_seed(0)
    net, data = untrained(), load_dataset("digits").train
    few = data.y < 5
    x, y = torch.from_numpy(data.x[few]), torch.from_numpy(data.y[few])
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(15):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


LOCAL: dict[str, Any] = {"local": {"epochs": 2, "batch_size": 16, "float_lr": 0.02}}
KINDS: dict[str, Any] = {"frozen": ["1", "2"], "trained": ["8"]}


def tuned(data: Dataset, **settings: Any) -> fedpm.Result:
    out = settings.pop("out", None)
    return fedpm.run(small_config(**settings), net=base(), weights="given", data=data, out=out, **KINDS)


@pytest.fixture(scope="session")
def pretrained_run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fedpm.Result]:
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    return folder, tuned(data, **LOCAL, rounds=3, out=folder)


def masked_base() -> MaskedNetwork:
    return MaskedNetwork(base(), weights="given", **KINDS)


def test_before_any_training_the_network_is_the_pretrained_one(data: Dataset) -> None:
    network = masked_base()
    x = torch.from_numpy(data.test.x[:50])
    whole = network.masked_module(np.ones(network.size, np.float32), 0, network.initial_stats())
    assert torch.equal(whole(x), base()(x))
    dense = network.module(network.dense_weights(3), network.initial_stats())
    assert torch.equal(dense(x), base()(x)), "dense training starts there too"


def test_what_a_mask_does_not_suit_keeps_its_good_value() -> None:
    network = masked_base()
    assert [part.name for part in network.parts] == ["5.weight", "5.bias"]
    assert network.trained == ("8.weight", "8.bias")
    assert {"6.weight", "2.running_mean", "2.weight"} <= network.constants.keys()
    assert list(network.stats) == ["8.weight", "8.bias"], "statistics of a frozen norm layer do not travel"
    assert MaskedNetwork(base(), weights="given", trained=["6"]).trained == ("6.weight", "6.bias")
    network.train()
    assert [name for name, module in network.net.named_children() if module.training] == ["5", "7", "8"]


def test_theta_starts_at_keep_in_exact_fractions(data: Dataset) -> None:
    first = tuned(data, rounds=1, model={"keep": 0.9}).rounds[0]
    kept = np.array(first["theta_histogram"]) @ np.linspace(0, 1, 21) / sum(first["theta_histogram"])
    assert 0.8 < kept < 0.95
    assert MaskedNetwork(base(), weights="given", keep=0.9).fingerprint(0) != masked_base().fingerprint(0)


def test_training_helps_and_the_file_holds_no_base(pretrained_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    folder, result = pretrained_run
    x, y = torch.from_numpy(data.test.x), torch.from_numpy(data.test.y)
    assert result.summary["accuracy"] > float((base()(x).argmax(1) == y).float().mean()) + 0.2
    assert isinstance(result.file, Model)
    assert result.file.tensors.keys() == {"8.weight", "8.bias"}
    loaded = fedpm.load(folder / "model.fedpm", net=base())
    assert torch.equal(loaded(x), result.model(x))
    assert torch.equal(loaded(x), fedpm.load(folder / "model.fedpm", net=base(), packed=True)(x))


def with_other(name: str) -> nn.Module:
    """Return the base with one value changed."""
    net = untrained()
    net.load_state_dict(base().state_dict())
    with torch.no_grad():
        (dict(net.named_parameters()) | dict(net.named_buffers()))[name].view(-1)[0] += 1
    return net


@pytest.mark.parametrize("name", ["5.weight", "1.bias", "6.weight", "2.running_var"])
def test_another_base_is_refused_by_hash(pretrained_run: tuple[Path, fedpm.Result], name: str) -> None:
    file = pretrained_run[1].file
    with pytest.raises(ArtifactError, match=r"mask over Sequential with SHA-256 .* load it with the base"):
        file.module(with_other(name))


def test_the_head_of_the_file_counts_and_not_that_of_the_base(
    pretrained_run: tuple[Path, fedpm.Result], data: Dataset
) -> None:
    x = torch.from_numpy(data.test.x[:9])
    assert torch.equal(pretrained_run[1].file.module(with_other("8.weight"))(x), pretrained_run[1].model(x))


def test_a_file_without_its_base_says_what_it_needs(pretrained_run: tuple[Path, fedpm.Result]) -> None:
    with pytest.raises(ArtifactError, match=r"a mask over its values \(Sequential\): load it with load"):
        pretrained_run[1].file.module()


@pytest.mark.slow
def test_base_and_file_give_the_same_logits_in_another_process(
    pretrained_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    torch.save(base().state_dict(), tmp_path / "base.pt")
    np.save(tmp_path / "x.npy", data.test.x[:20])
    code = (
        "import sys, numpy, torch, fedpm; from tests.model.test_pretrained import untrained; net = untrained();"
        "net.load_state_dict(torch.load(sys.argv[1] + '/base.pt', weights_only=True)); torch.set_num_threads(1);"
        "model = fedpm.load(sys.argv[2], net=net); x = torch.from_numpy(numpy.load(sys.argv[1] + '/x.npy'));"
        "numpy.save(sys.argv[1] + '/y.npy', model(x).numpy())"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(pretrained_run[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = pretrained_run[1].model(torch.from_numpy(data.test.x[:20]))
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_onnx_export_agrees(pretrained_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    assert to_onnx(pretrained_run[1].model, (1, 8, 8), "float32", tmp_path / "m.onnx") < 1e-4


def test_a_run_that_is_resumed_ends_in_the_same_file(
    pretrained_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    tuned(data, **LOCAL, rounds=2, out=tmp_path / "run")
    result = fedpm.resume(tmp_path / "run", rounds=3, net=base(), data=data, **KINDS)
    assert result.file.to_bytes() == pretrained_run[1].file.to_bytes()


@pytest.mark.parametrize("algorithm", ["fedavg", "eden", "fedmask"])
def test_other_methods_start_from_the_base_too(data: Dataset, algorithm: str) -> None:
    lr = {"fedmask": {}}.get(algorithm, {"lr": 1e-6})
    result = tuned(data, rounds=1, algorithm=algorithm, local={"float_lr": 1e-6, **lr})
    trained = result.model.get_parameter("5.weight")
    share = (trained - base().get_parameter("5.weight")).abs().gt(1e-3).float().mean()
    assert share < 0.3


def test_a_mask_that_keeps_nearly_all_is_coded_by_the_size_of_the_weights() -> None:
    network = MaskedNetwork(nn.Linear(1100, 1000), weights="given")
    assert network.given is not None
    dropped = (Streams(2).uint32("mask", network.size) < 0.01 * 2**32) & (network.given.abs().numpy() < 0.01)
    mask = (~dropped).astype(np.uint8)
    scheme, coded = encode_final(mask, network, 7)
    assert (scheme, len(coded) < network.size / 128) == (6, True)
    assert np.array_equal(decode_final(scheme, coded, network, 7), mask)


def test_a_node_of_a_fleet_with_another_base_refuses_the_first_broadcast(data: Dataset) -> None:
    server, node = (
        make_fedpm(MaskedNetwork(net, weights="given", **KINDS)) for net in (base(), with_other("1.weight"))
    )
    broadcast = server.broadcast(server.init()).payload
    with pytest.raises(WireError, match="message is of another exchange: model"):
        node.client_update(broadcast, data.train, Streams(5).at(1, 0))


@pytest.mark.parametrize("weights", ["random", "given"])
def test_packing_leaves_alone_what_is_trained(weights: str) -> None:
    network = MaskedNetwork(base(), weights=weights, trained=["6"])
    module = network.masked_module(Streams(1).bits("mask", network.size), 0, network.initial_stats())
    x = torch.linspace(-1, 1, 128).reshape(2, 64)
    expected = module(x)
    assert torch.equal(pack(module, network)(x), expected)


def test_lower_layers_that_run_once_change_no_byte(data: Dataset) -> None:
    cached, plain = (
        tuned(data, rounds=3, precision="float32", local={**LOCAL["local"], "cache": cache}) for cache in (True, False)
    )
    assert isinstance(cached.file, Model)
    assert isinstance(plain.file, Model)
    assert cached.file.coded_mask == plain.file.coded_mask
    assert [record["accuracy"] for record in cached.rounds] == [record["accuracy"] for record in plain.rounds]
    x = torch.from_numpy(data.test.x)
    assert torch.equal(cached.model(x), plain.model(x)), "what is shipped is the whole network"


def test_a_run_that_is_resumed_needs_the_same_inputs_not_the_same_features(data: Dataset, tmp_path: Path) -> None:
    local = {**LOCAL["local"], "cache": True}
    tuned(data, rounds=1, local=local, out=tmp_path / "run")
    assert len(fedpm.resume(tmp_path / "run", rounds=2, net=base(), data=data, **KINDS).rounds) == 2


def test_nothing_to_run_once_is_one_sentence(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"there is nothing to run once; the network should be an nn\.Sequential"):
        fedpm.run(small_config(local={"cache": True}), net=base(), frozen=["1"], data=data)
    with pytest.raises(ConfigError, match="what clients hold out is not cached"):
        tuned(data, rounds=1, local={**LOCAL["local"], "cache": True}, evaluation={"local": True})


@pytest.mark.parametrize(("effort", "rate"), [("rounds", 2 / 8), ("bits", 2 / 3 / 8)])
def test_scores_over_given_weights_go_a_third_of_the_way(data: Dataset, effort: str, rate: float) -> None:
    config = small_config(local={"epochs": 2, "batch_size": 16}, fedpm={"effort": effort}, model={"weights": "given"})
    method = build(config, net=base(), data=data).method
    assert isinstance(method, FedPM)
    assert method.trainer.local.rate(1, 64) == pytest.approx(rate)
