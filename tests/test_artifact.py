import json
import struct
import zlib
from pathlib import Path

import pytest
import torch
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ArtifactError
from tests.conftest import small_net


def test_a_loaded_model_equals_the_trained_one(small_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    folder, result = small_run
    module = fedpm.load(folder / "model.fedpm", net=small_net())
    assert not module.training
    x = torch.from_numpy(data.test.x)
    assert torch.equal(module(x), result.model(x))


def test_bytes_round_trip(small_run: tuple[Path, fedpm.Result]) -> None:
    data = small_run[1].file.to_bytes()
    assert fedpm.Model.from_bytes(data).to_bytes() == data


def test_another_network_is_refused(small_run: tuple[Path, fedpm.Result]) -> None:
    with pytest.raises(ArtifactError, match="of another network"):
        small_run[1].file.module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ArtifactError, match="net=YourNetwork"):
        small_run[1].file.module()


def test_damage_is_noticed(small_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    data = small_run[1].file.to_bytes()
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(ArtifactError):
            fedpm.Model.from_bytes(bytes(damaged))
    for length in range(0, len(data), 11):
        with pytest.raises(ArtifactError):
            fedpm.Model.from_bytes(data[:length])
    with pytest.raises(ArtifactError, match="cannot read this file"):
        fedpm.load(tmp_path / "missing.fedpm")


@pytest.mark.parametrize("header", [b"[]", b"{}", b"not json", json.dumps({"seed": 1}).encode()])
def test_a_well_checksummed_file_with_a_foolish_header_is_refused(header: bytes) -> None:
    data = struct.pack("<8sIII", b"FEDPMODL", 1, len(header), 0) + header
    with pytest.raises(ArtifactError, match="header"):
        fedpm.Model.from_bytes(data + struct.pack("<I", zlib.crc32(data)))
