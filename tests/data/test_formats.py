"""Readers of the official formats, and of folders of arrays: exact, and every fault has its sentence."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpm.data.catalog import SPECS
from fedpm.data.datasets import DATASETS
from fedpm.data.formats import read_cifar, read_idx
from fedpm.data.paths import of_path
from fedpm.errors import DataError
from tests.data.conftest import SHARED, cifar_files, gzipped, idx, idx_files, needs_shared, write


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_idx_round_trip(shape: list[int], random: object) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    assert np.array_equal(read_idx(idx(array), "file", len(shape)), array)


def test_idx_every_cut_and_every_extra_byte_is_refused() -> None:
    whole = idx(np.ones((3, 2, 2)))
    for length in range(len(whole)):
        with pytest.raises(DataError, match="cut"):
            read_idx(whole[:length], "file", 3)
    with pytest.raises(DataError, match="29 bytes, and its header promises 28"):
        read_idx(whole + b"\0", "file", 3)


def test_idx_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="starts with 0x00000801 and should with 0x00000803"):
        read_idx(idx(np.ones(30)), "file", 3)


def test_idx_header_that_promises_the_moon_is_refused() -> None:
    with pytest.raises(DataError, match="promises"):
        read_idx(struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "file", 3)


def test_cifar_records_are_label_then_planes() -> None:
    record = bytes([7, 42]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    images, labels = read_cifar(record * 2, "file", 2)
    assert images.shape == (2, 3, 32, 32)
    assert labels.tolist() == [42, 42]  # CIFAR-100: the fine label, not the coarse one
    assert [int(images[0, c].mean()) for c in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("data", [b"", b"x" * 3072, b"x" * 3074])
def test_cifar_of_a_wrong_size_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="not a whole number of records of 3073"):
        read_cifar(data, "file", 1)


def test_emnist_comes_out_upright(tmp_path: Path) -> None:
    spec = SPECS["emnist"]
    stored = np.zeros((47, 28, 28))
    stored[:, 3, :] = 255  # a column of the letter, as the official files store it
    files = {name: idx(stored if "images" in name else np.arange(47)) for name in spec.files}
    write(tmp_path / "emnist", files)
    image = DATASETS["emnist"](tmp_path).train.x[0, 0]
    assert (image[:, 3] == 255).all()
    assert image.sum() == 28 * 255


def test_idx_images_without_as_many_labels_are_refused(tmp_path: Path) -> None:
    files = idx_files(SPECS["mnist"]) | {"train-labels-idx1-ubyte": idx(np.zeros(39))}
    write(tmp_path, files)
    with pytest.raises(DataError, match=r"40 images.* 39 labels"):
        DATASETS["mnist"](tmp_path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    files = idx_files(SPECS["mnist"]) | {"t10k-images-idx3-ubyte": idx(np.zeros((20, 8, 8)))}
    write(tmp_path, files)
    with pytest.raises(DataError, match=r"images of \(8, 8\) pixels"):
        DATASETS["mnist"](tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_labels_out_of_range_are_refused(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    files = cifar_files(spec) if spec.label_bytes else idx_files(spec)
    broken = spec.train[-1]
    files[broken] = (
        files[broken][:-3073] + bytes([10]) + files[broken][-3072:] if spec.label_bytes else idx(np.full(40, 10))
    )
    write(tmp_path, files)
    with pytest.raises(DataError, match=f"{broken}: holds the label 10, and .* has 10 classes"):
        DATASETS[name](tmp_path)


def test_cifar_archive_is_read_without_unpacking(tmp_path: Path) -> None:
    files = cifar_files(SPECS["cifar100"])
    archive = tmp_path / "cifar-100-binary-part.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    loaded = DATASETS["cifar100"](tmp_path)
    assert loaded.train.x.tobytes() == b"".join(files["train.bin"][i * 3074 + 2 : (i + 1) * 3074] for i in range(20))
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(DataError, match="cut or damaged"):
        DATASETS["cifar100"](tmp_path)


def test_archive_with_other_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        archive.writestr("gzip/readme.txt", "nothing")
    with pytest.raises(DataError, match=r"gzip.zip: holds no emnist-balanced-train-images-idx3-ubyte"):
        DATASETS["emnist"](tmp_path)


def test_emnist_is_read_out_of_its_archive(tmp_path: Path) -> None:
    files = idx_files(SPECS["emnist"], 94, 47)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for name, data in gzipped(files).items():
            archive.writestr(f"gzip/{name}", data)
    assert len(DATASETS["emnist"](tmp_path).train) == 94


@pytest.mark.slow
@needs_shared
def test_shared_emnist_loads_under_a_name_that_says_what_it_is() -> None:
    data = DATASETS["emnist"](SHARED)
    assert data.name == "EMNIST-47 (derived: not the official files)"
    assert (len(data.train), len(data.test), data.input_shape) == (90_605, 18_800, (1, 28, 28))
    assert len(data.classes) == 47
    assert np.bincount(data.test.y).tolist() == [400] * 47


@pytest.mark.slow
@needs_shared
def test_shared_cifar100_subset_loads_through_the_same_reader() -> None:
    data = DATASETS["cifar100"](SHARED)
    assert data.name == "CIFAR-100 (derived: not the official files)"
    assert np.bincount(data.train.y).tolist() == [100] * 100
    assert np.bincount(data.test.y).tolist() == [20] * 100
    with tarfile.open(SHARED / "cifar-100-binary-subset.tar.gz") as archive:
        names = archive.extractfile("cifar-100-binary/fine_label_names.txt").read().decode().split()
    assert list(data.classes) == names


# -- own data -----------------------------------------------------------------------------------------------


def own_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)
    return {"train_x": x[:20], "train_y": np.arange(20) % 3, "test_x": x[20:], "test_y": np.arange(10) % 3}


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_own_folder_loads(kind: str, tmp_path: Path) -> None:
    arrays = own_arrays()
    if kind == "npz":
        np.savez(tmp_path / "all.npz", allow_pickle=False, **arrays, extra=np.zeros(3))
    else:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "classes.txt").write_text("red\ngreen\nblue\n")
    data = of_path(tmp_path)
    assert np.array_equal(data.train.x, arrays["train_x"])
    assert np.array_equal(data.test.y, arrays["test_y"])
    assert data.classes == ("red", "green", "blue")


def test_own_folder_never_loads_objects(tmp_path: Path) -> None:
    for name, array in own_arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "train_y.npy", np.array([object()] * 20), allow_pickle=True)
    with pytest.raises(DataError, match=r"train_y.npy: not readable as arrays of numbers"):
        of_path(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "test_y.npy").unlink(), "there is no test_y; a folder should hold"),
        (lambda f: np.savez(f / "more.npz", a=np.zeros(1)), "one .npz file, or .npy files only"),
        (lambda f: (f / "train_x.npy").write_bytes((f / "train_x.npy").read_bytes()[:500]), "not readable as arrays"),
        (lambda f: (f / "train_x.npy").write_bytes(b""), "not readable as arrays"),
        (lambda f: np.save(f / "train_y.npy", np.arange(19)), "20 inputs and 19 labels"),
        (lambda f: np.save(f / "train_y.npy", np.full(20, -1)), "a label is -1; classes should be numbered"),
        (lambda f: np.save(f / "train_x.npy", np.array(["a"] * 20)), "inputs should be an array of numbers"),
        (lambda f: np.save(f / "train_x.npy", np.float32(1)), "inputs should be an array of numbers"),
        (lambda f: np.save(f / "train_y.npy", np.int64(1)), "labels should be integers from 0"),
        (lambda f: np.save(f / "test_x.npy", np.zeros((10, 1, 9, 9))), "bring all to one form"),
        (lambda f: (f / "classes.txt").write_text("only\n"), "1 classes are named"),
    ],
)
def test_own_folder_faults(change: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    for name, array in own_arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        of_path(tmp_path)


def test_own_npz_that_is_cut_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", allow_pickle=False, **own_arrays())
    (tmp_path / "all.npz").write_bytes((tmp_path / "all.npz").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"all.npz: not readable as arrays"):
        of_path(tmp_path)


def test_own_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data.path = '.*nowhere': there is no such file or folder$"):
        of_path(tmp_path / "nowhere")
