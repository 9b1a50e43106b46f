import json
import os
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.cli.scored import _check_classes
from fedpm.data.datasets import Dataset, Shard, to_input
from fedpm.errors import ArtifactError, ConfigError
from fedpm.model.export import to_onnx
from fedpm.model.file import Model
from fedpm.model.mask_coding import OF_RANDOM, SCHEMES, SMALL, decode_final, encode_final
from fedpm.model.masking import MaskedNetwork
from fedpm.model.nets import build
from fedpm.rng import Streams
from fedpm.wire.masks import Mask
from tests.command import fedpm as fedpm_command
from tests.model.test_masking import Tied
from tests.small import small_config, small_net


@cache
def slim() -> MaskedNetwork:
    return MaskedNetwork(build("conv4-slim", (1, 8, 8), 10))


def model_of(mask: Mask) -> Model:
    masked = slim()
    return Model.make(
        masked,
        mask,
        masked.initial_stats(),
        seed=7,
        network="conv4-slim",
        input_shape=(1, 8, 8),
        input_dtype="float32",
        classes=tuple("0123456789"),
        preprocessing="x / 8 - 1",
        provenance={},
    )


@cache
def some_model() -> Model:
    return model_of(Streams(1).bits("mask", slim().size))


def memory(module: nn.Module) -> int:
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in [*module.parameters(), *module.buffers()]}
    return sum(tensors.values())


def test_a_file_of_version_1_is_read() -> None:
    model = some_model()
    header = model.header.model_dump_json(exclude={"trained", "base"}).encode()
    body = struct.pack("<8sIIII", b"FEDPMODL", 1, len(header), len(model.coded_mask), 0) + header + model.coded_mask
    old = Model.from_bytes(body + struct.pack("<I", zlib.crc32(body)))
    assert old == model
    x = torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8)
    assert torch.equal(old.module()(x), model.module()(x))


def test_a_loaded_model_equals_the_trained_one(small_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    folder, result = small_run
    module = fedpm.load(folder / "model.fedpm", net=small_net())
    assert not module.training
    x = torch.from_numpy(data.test.x)
    assert torch.equal(module(x), result.model(x))


def test_bytes_round_trip(small_run: tuple[Path, fedpm.Result]) -> None:
    data = small_run[1].file.to_bytes()
    assert Model.from_bytes(data).to_bytes() == data


def test_a_start_from_half_of_the_weights_is_a_smaller_file(
    small_run: tuple[Path, fedpm.Result], data: Dataset
) -> None:
    result = fedpm.run(small_config(model={"init": "kaiming"}), net=small_net(), data=data)
    x = to_input(data.test.x[:9], torch.device("cpu"))
    assert torch.equal(Model.from_bytes(result.file.to_bytes()).module(small_net())(x), result.model(x))
    assert len(small_run[1].file.coded_mask) < 0.7 * len(result.file.coded_mask)


@pytest.mark.slow
def test_the_file_alone_gives_the_same_logits_in_another_process(tmp_path: Path) -> None:
    model = some_model()
    model.save(tmp_path / "m.fedpm")
    code = (
        "import fedpm, torch, sys; x = torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8);"
        "threads = lambda n: torch.set_num_threads(n) or fedpm.load(sys.argv[1])(x).tolist();"
        "print([threads(1), threads(2)])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.fedpm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = model.module()(torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8))
    for found in torch.tensor(json.loads(done.stdout)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.5, 1.0])
def test_size_never_exceeds_one_bit_per_parameter_and_a_header(density: float) -> None:
    masked = slim()
    mask = (Streams(2).uint32("mask", masked.size) < density * 2**32).astype(np.uint8)
    model = model_of(mask)
    assert len(model.coded_mask) <= -(-masked.size // 8)
    assert len(model.to_bytes()) - len(model.coded_mask) < 1200
    assert np.array_equal(model.mask(masked), mask)


def structured(scheme: int, masked: MaskedNetwork) -> Mask:
    """Return a mask whose density differs between the contexts of a scheme."""
    contexts = SCHEMES[scheme](masked, 7)
    density = Streams(9).uint32("density", int(contexts.max()) + 1)[contexts]
    return (Streams(2).uint32("mask", masked.size) < density).astype(np.uint8)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_structure_is_found_and_pays(scheme: int) -> None:
    masked = MaskedNetwork(build("conv4", (1, 8, 8), 10), weights="random" if scheme in OF_RANDOM else "given")
    mask = structured(scheme, masked)
    chosen, coded = encode_final(mask, masked, 7)
    assert chosen == scheme
    assert 8 * len(coded) / masked.size < 0.85
    assert np.array_equal(decode_final(chosen, coded, masked, 7), mask)


def test_packed_weights_give_identical_outputs_in_a_tenth_of_the_memory() -> None:
    model = some_model()
    plain, packed = model.module(), model.module(packed=True)
    x = torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8)
    assert torch.equal(plain(x), packed(x))
    assert memory(plain) >= 10 * memory(packed)


def test_packed_weights_work_for_shared_parameters() -> None:
    masked = MaskedNetwork(Tied(), frozen=["norm"])
    about = {"network": None, "input_shape": (3,), "input_dtype": "int64", "classes": tuple("abcdefg")}
    mask = Streams(0).bits("m", masked.size)
    model = Model.make(masked, mask, masked.initial_stats(), seed=1, preprocessing="", provenance={}, **about)
    x = torch.tensor([[1, 2, 3]])
    assert torch.equal(model.module(Tied())(x), model.module(Tied(), packed=True)(x))


def test_frozen_values_come_from_the_file() -> None:
    first, second = nn.LayerNorm(4), nn.LayerNorm(4)
    nn.init.constant_(first.weight, 2.5)
    masked = MaskedNetwork(nn.Sequential(nn.Linear(3, 4), first), frozen=["1"])
    about = {"network": None, "input_shape": (3,), "input_dtype": "float32", "classes": tuple("abcd")}
    mask = Streams(0).bits("m", masked.size)
    model = Model.make(masked, mask, masked.initial_stats(), seed=1, preprocessing="", provenance={}, **about)
    loaded = Model.from_bytes(model.to_bytes()).module(nn.Sequential(nn.Linear(3, 4), second))
    assert loaded.get_parameter("1.weight").tolist() == [2.5] * 4


def test_another_network_is_refused_with_the_first_difference(small_run: tuple[Path, fedpm.Result]) -> None:
    with pytest.raises(ArtifactError, match=r"the model has '1.weight 32×64 .*', and the network '1.weight 10×64"):
        small_run[1].file.module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ArtifactError, match="net=YourNetwork"):
        small_run[1].file.module()


def test_damage_is_noticed(small_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    data = small_run[1].file.to_bytes()
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(ArtifactError):
            Model.from_bytes(bytes(damaged))
    for length in range(0, len(data), 11):
        with pytest.raises(ArtifactError):
            Model.from_bytes(data[:length])
    with pytest.raises(ArtifactError, match="there is no such file or folder"):
        fedpm.load(tmp_path / "missing.fedpm")


def file_with(header: bytes, mask: bytes = b"", tensors: bytes = b"", version: int = 1) -> bytes:
    sizes = (len(header), len(mask), len(tensors))
    data = struct.pack("<8sIIII", b"FEDPMODL", version, *sizes) + header + mask + tensors
    return data + struct.pack("<I", zlib.crc32(data))


def header_with(**changes: object) -> bytes:
    return json.dumps({**json.loads(some_model().header.model_dump_json()), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a fedpm model file"),
        (b"PK\x03\x04" + bytes(100), "not a fedpm model file"),
        (file_with(b"{}", version=9), "version 9: this library reads 1 to 4"),
        (file_with(b"[]"), "wrong header"),
        (file_with(b"not json"), "wrong header"),
        (file_with(b"[" * 100_000), "wrong header"),
        (file_with(header_with(seed=-1)), "seed"),
        (file_with(header_with(parameters=2**40)), "parameters"),
        (file_with(header_with(surprise=1)), "surprise"),
        (file_with(header_with(), b"", b"tensors"), "damaged tensors"),
    ],
)
def test_each_fault_has_its_reason(data: bytes, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        Model.from_bytes(data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network": "conv9"}, "cannot be built"),
        ({"network": "os.system"}, "cannot be built"),
        ({"input_shape": [1, 2, 2]}, "cannot be built"),
        ({"input_shape": [1]}, "cannot be built"),
        ({"input_shape": [1, 10**6, 10**6]}, "parameters"),
        ({"input_shape": [1, -8, 8]}, "cannot be built|parameters"),
        ({"classes": ["a"]}, "parameters"),
        ({"init": "e"}, "another network"),
        ({"scheme": 77}, "scheme 77"),
        ({"scheme": 0}, "mask"),
    ],
)
def test_hostile_headers_take_no_memory_and_run_no_code(changes: dict[str, object], words: str) -> None:
    model = Model.from_bytes(file_with(header_with(**changes), b"\1\0\0\0"))
    with pytest.raises(ArtifactError, match=words):
        model.module()


LARGE = {"input_shape": [1, 512, 512], "parameters": 134_302_714}
"""What a header of 700 bytes can claim; unpacked, it takes 3 GB."""


@pytest.mark.parametrize(("scheme", "length"), [(1, 0), (2, 4), (0, 2**20)])
def test_a_small_file_is_no_large_network(scheme: int, length: int) -> None:
    model = Model.from_bytes(file_with(header_with(**LARGE, scheme=scheme), bytes(length)))
    with pytest.raises(ArtifactError, match=f"mask of {length} bytes: it should have 1049240 at least"):
        model.module()


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.0, 0.002])
def test_a_mask_of_a_large_network_that_says_next_to_nothing_can_be_read(density: float) -> None:
    masked = MaskedNetwork(build("conv4", (1, 28, 28), 10))
    assert masked.size > SMALL
    mask = (Streams(2).uint32("mask", masked.size) < density * 2**32).astype(np.uint8)
    scheme, coded = encode_final(mask, masked, 7)
    assert masked.size / 128 <= len(coded) <= masked.size / 8 + 1
    assert np.array_equal(decode_final(scheme, coded, masked, 7), mask)


@pytest.mark.parametrize(
    "provenance", [{}, {"config": "x"}, {"config": {"data": []}}, {"config": {"data": {"name": 7}}}, {"config": None}]
)
def test_provenance_of_a_wrong_type_is_one_sentence(tmp_path: Path, provenance: dict[str, object]) -> None:
    file = tmp_path / "model.fedpm"
    file.write_bytes(file_with(header_with(provenance=provenance), some_model().coded_mask))
    done = fedpm_command("model", "eval", file)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.endswith("does not tell on which data it was trained; choose some with --data NAME\n")
    assert fedpm_command("model", "inspect", file).code == 0


def test_data_of_other_classes_are_not_scored(small_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    digits = fedpm.load_dataset("digits").test
    told = {}
    for name, labels in (("words", np.array(["well", "sick"])[digits.y % 2]), ("numbers", digits.y % 2)):
        np.savez(tmp_path / f"{name}.npz", x=digits.x, y=labels)
        data = ["--data", str(tmp_path / f"{name}.npz"), "--net", "tests.small:small_net"]
        told[name] = fedpm_command("model", "eval", small_run[0], *data)
    assert told["words"].stderr == (
        "fedpm: the classes of words are sick, well, and those of the model 0, 1, 2, 3, 4, 5, 6, 7, 8, 9: 'sick' is "
        "none of them; give data with the model's classes, in that order\n"
    )
    assert told["numbers"].code == 0, told["numbers"].stderr


@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_the_command_scores_and_exports_a_network_of_ones_own(
    algorithm: str, small_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    run = small_run[0]
    if algorithm == "fedavg":
        run = tmp_path / "run"
        fedpm.run(small_config(rounds=1, algorithm="fedavg"), net=small_net(), data=data, out=run)
    told = fedpm_command("model", "eval", run, "--data", "digits")
    assert (told.code, "say what makes it with --net MODULE:FUNCTION" in told.stderr) == (2, True)
    scored = fedpm_command("model", "eval", run, "--data", "digits", "--net", "tests.small:small_net")
    accuracy = json.loads((run / "summary.json").read_text())["accuracy"]
    assert f"accuracy {accuracy:.4f}" in scored.stdout
    out = tmp_path / "weights.safetensors"
    assert fedpm_command("model", "export", run, "--torch", out, "--net", "tests.small:small_net").code == 0
    assert len(fedpm.load(out, net=small_net()).state_dict()) == 4
    again = fedpm_command("model", "export", run, "--torch", out, "--net", "tests.small:small_net")
    remedy = "exists already, and nothing is overwritten; choose another name, or remove it"
    assert (again.code, again.stderr) == (2, f"fedpm: {out}: {remedy}\n")
    wrong = fedpm_command("model", "eval", run, "--data", "digits", "--net", "tests.small:small_config")
    assert "it should give an nn.Module" in wrong.stderr
    alone = fedpm_command("model", "eval", run, "--data", "digits", "--net", "small")
    assert alone.stderr == "fedpm: --net = 'small': should be MODULE:FUNCTION, such as net:make\n"


def test_the_sparsity_of_a_network_of_ones_own_is_shown(small_run: tuple[Path, fedpm.Result]) -> None:
    told = fedpm_command("model", "inspect", small_run[0])
    assert told.stdout.endswith("sparsity: say what makes your network with --net MODULE:FUNCTION\n")
    shown = fedpm_command("model", "inspect", small_run[0], "--net", "tests.small:small_net")
    layers = [line.split()[0] for line in shown.stdout.splitlines()[-5:]]
    assert layers == ["1.weight", "1.bias", "3.weight", "3.bias", "all"]


def test_a_file_may_stand_where_its_module_should(
    small_run: tuple[Path, fedpm.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_of_mine.py").write_text("from tests.small import small_net as make\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = fedpm_command("model", "eval", small_run[0], "--data", "digits", "--net", "net_of_mine.py:make")
    assert done.code == 0, done.stderr


def test_a_model_of_numbered_classes_is_scored_on_as_many_named_ones() -> None:
    _check_classes(list("0123456789"), named_classes(10))
    for known in (list("0123456789"), ["well", "sick"]):
        with pytest.raises(ConfigError, match="give data with the model's classes, in that order"):
            _check_classes(known, named_classes(2))
    numbered = replace(named_classes(2), classes=("0", "1"))
    with pytest.warns(UserWarning, match="^labels of animals are numbers, and count as 0 well, 1 sick$"):
        _check_classes(["well", "sick"], numbered)


def named_classes(count: int) -> Dataset:
    shard = Shard(np.zeros((count, 1), np.float32), np.arange(count))
    return Dataset("animals", shard, shard, tuple("abcdefghij"[:count]))


def test_another_network_is_told_what_it_lacks(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    model = fedpm.run(small_config(rounds=1), net=net, data=data, progress=False).file
    assert isinstance(model, Model)
    with pytest.raises(ArtifactError, match=r"than the one given: it has 2\.weight, 2\.bias, which yours lacks"):
        model.module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


STEERING = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\r"


def test_words_of_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    provenance = {STEERING: STEERING, "config": {"data": {"name": STEERING}}}
    header = header_with(provenance=provenance, classes=[STEERING, *"123456789"], preprocessing=STEERING)
    (tmp_path / "a.fedpm").write_bytes(file_with(header, some_model().coded_mask))
    (tmp_path / "b.fedpm").write_bytes(file_with(header_with(network=STEERING), some_model().coded_mask))
    calls = [("inspect", "a"), ("inspect", "b"), ("eval", "a")]
    done = [fedpm_command("model", what, tmp_path / f"{file}.fedpm") for what, file in calls]
    assert [one.code for one in done] == [0, 1, 1]
    for one in done:
        assert not set(one.stdout + one.stderr) & set(STEERING) - set("]0;title[31m2J")
        assert r"\x1b]0;title\x07" in one.stdout + one.stderr


@pytest.mark.slow
def test_onnx_runtime_predicts_the_same_on_the_whole_test_set(data: Dataset, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    module = some_model().module()
    assert to_onnx(module, (1, 8, 8), "float32", tmp_path / "m.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"input": data.test.x})
    assert np.array_equal(scores.argmax(1), module(torch.from_numpy(data.test.x)).argmax(1).numpy())


@pytest.mark.slow
def test_a_network_without_onnx_form_is_one_clear_sentence(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the onnx extra")

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum().item() > 0 and os.getpid())

    with pytest.raises(ArtifactError, match="cannot export this network"):
        to_onnx(Odd(), (3,), "float32", tmp_path / "odd.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    words = (
        r"needs onnxruntime: pip install 'fedpm\[onnx\]', in a clone pip install -c constraints.txt -e '\.\[onnx\]'$"
    )
    with pytest.raises(ConfigError, match=words):
        to_onnx(nn.Linear(2, 2), (2,), "float32", tmp_path / "x.onnx")
