"""Nothing that was reported as done is lost: faults, cuts, damage."""

import json
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ArtifactError, WriteError
from fedpm.experiment.folder import RunFolder
from fedpm.files import write_atomically
from tests.drills import (
    can_mount,
    faulty,
    power_cuts,
    short_config,
    stop_after_a_round,
    survive_cut,
    survive_damage,
    survive_fault,
)
from tests.small import small_net


@pytest.fixture(scope="module")
def whole(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, fedpm.run(short_config(), net=small_net(), data=data, out=out).file.to_bytes()


@pytest.mark.slow
def test_a_fault_at_any_operation_on_files_loses_nothing(
    whole: tuple[Path, bytes], data: Dataset, tmp_path: Path
) -> None:
    with faulty() as faults:
        fedpm.run(short_config(), net=small_net(), data=data, out=tmp_path / "counted")
    assert faults.count > 40
    for number in range(0, faults.count, 3):  # all of them: python -m benchmarks drills
        assert survive_fault(number, tmp_path / str(number), data) == whole[1]


def test_killed_writers_leave_nothing_behind_for_good(whole: tuple[Path, bytes], data: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    left = [out / ".summary.json.abc.tmp", out / "checkpoint" / ".state.safetensors.abc.tmp"]
    for file in left:
        file.write_bytes(b"half")
    fedpm.resume(out, net=small_net(), data=data)
    assert not any(file.exists() for file in left)


@pytest.mark.skipif(not can_mount(), reason="power cuts need root, to mount a disk of their own")
@pytest.mark.slow
def test_a_power_cut_after_any_round_loses_nothing(whole: tuple[Path, bytes], data: Dataset, tmp_path: Path) -> None:
    images = power_cuts(tmp_path, data)
    assert len(images) == 2
    for done, image in enumerate(images, 1):
        assert survive_cut(image, done, data) == whole[1]


def test_a_temporary_name_that_somebody_planted_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpm.files.secrets.token_hex", lambda count: "guessed")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".key.guessed.tmp").symlink_to(victim)
    with pytest.raises(WriteError, match="File exists"):
        write_atomically(tmp_path / "key", b"secret")
    assert victim.read_text() == "mine"


def test_a_file_in_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"new/model.fedpm: there is no folder .*/new to write to; make it first"):
        write_atomically(tmp_path / "new" / "model.fedpm", b"")


def test_what_cannot_be_written_is_one_sentence_with_the_name_that_was_given(
    whole: tuple[Path, bytes], data: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "taken.fedpm").mkdir()
    out = tmp_path / "file" / "run"
    with pytest.raises(ArtifactError) as told:
        fedpm.run(short_config(), net=small_net(), data=data, out=out)
    assert str(told.value) == f"{out}: cannot be written (Not a directory); choose another place, where you may write"
    model = fedpm.Model.open(whole[0] / "model.fedpm")
    with pytest.raises(WriteError, match=r"taken.fedpm: cannot be written \(Is a directory\); choose another place"):
        model.save(tmp_path / "taken.fedpm")
    for full in range(3):
        with (
            faulty(full),
            pytest.raises(OSError, match=r"/m.fedpm: cannot be written \(no space left for \w+\); make room"),
        ):
            model.save(tmp_path / "m.fedpm")
    assert isinstance(pickle.loads(pickle.dumps(told.value)), WriteError)  # noqa: S301 - as on the way from a worker


def test_a_run_that_ended_before_it_began_can_be_begun_again(data: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    RunFolder.create(out, "rounds = 1").close()
    (out / "config.toml").rename(out / ".config.toml.1.tmp")  # killed in the middle of writing it
    with pytest.raises(ArtifactError, match="its run ended before it began; start it with --out"):
        fedpm.resume(out, net=small_net(), data=data)
    assert len(fedpm.run(short_config(), net=small_net(), data=data, out=out).rounds) == 2
    assert not list(out.glob(".*.tmp"))


def test_damaged_files_are_refused_or_do_no_harm(whole: tuple[Path, bytes], data: Dataset, tmp_path: Path) -> None:
    begun, rng = stop_after_a_round(tmp_path / "begun", data), random.Random(0)  # noqa: S311 - flips of bits
    ends = [survive_damage(begun, tmp_path / str(number), data, rng) for number in range(20)]
    assert {None} <= {*ends} <= {None, whole[1]}


def test_a_figure_of_the_log_that_was_changed_is_noticed(data: Dataset, tmp_path: Path) -> None:
    out = stop_after_a_round(tmp_path / "run", data)
    log = out / "rounds.jsonl"
    log.write_text(log.read_text().replace('"clients": [0, 1]', '"clients": [0, 0]'))
    with pytest.raises(ArtifactError, match="it is not what the checkpoint was saved with"):
        fedpm.resume(out, net=small_net(), data=data)


@pytest.mark.slow
def test_a_flipped_bit_of_the_checkpoint_is_noticed(whole: tuple[Path, bytes], data: Dataset, tmp_path: Path) -> None:
    out = stop_after_a_round(tmp_path / "run", data)
    state = out / "checkpoint" / "state.safetensors"
    genuine = state.read_bytes()
    for place in np.linspace(0, len(genuine) - 1, 40).astype(int).tolist():
        damaged = bytearray(genuine)
        damaged[place] ^= 4
        state.write_bytes(bytes(damaged))
        with pytest.raises(ArtifactError):
            fedpm.resume(out, net=small_net(), data=data)
    state.write_bytes(genuine)
    assert fedpm.resume(out, net=small_net(), data=data).file.to_bytes() == whole[1]


def test_an_edited_setting_is_named_and_more_rounds_are_welcome(
    whole: tuple[Path, bytes], data: Dataset, tmp_path: Path
) -> None:
    out = stop_after_a_round(tmp_path / "run", data)
    config = out / "config.toml"
    genuine = config.read_text()
    config.write_text(genuine.replace('lr = "auto"\n', "lr = 0.2\n"))
    with pytest.raises(ArtifactError, match=r"changed since the run began \(local\.lr = 0\.2 instead of 'auto'\)"):
        fedpm.resume(out, net=small_net(), data=data)
    config.write_text(genuine.replace("rounds = 2\n", "rounds = 4\n"))
    assert len(fedpm.resume(out, net=small_net(), data=data).rounds) == 4


@pytest.mark.parametrize("damage", [bytes(20), b'{"round": 1, "accu\n', b"[1, 2]\n", b'{"round": 7}\n'])
def test_a_damaged_log_is_one_sentence(damage: bytes, whole: tuple[Path, bytes], data: Dataset, tmp_path: Path) -> None:
    out = stop_after_a_round(tmp_path / "run", data)
    (out / "rounds.jsonl").write_bytes(damage)
    with pytest.raises(ArtifactError, match=r"a line is damaged .* restore the file from a copy, or start anew"):
        fedpm.resume(out, net=small_net(), data=data)


def test_the_log_of_a_finished_run_reads_back(whole: tuple[Path, bytes]) -> None:
    records = RunFolder(whole[0]).records()
    assert [record["round"] for record in records] == [1, 2]
    assert json.loads((whole[0] / "summary.json").read_text())["rounds"] == 2
