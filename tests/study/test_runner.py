"""Studies as users run them: real processes, interrupted, failing, continued."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.study.conftest import fedpm

pytestmark = pytest.mark.slow
NAMES = ["2_eden_seed0", "2_fedpm_seed0"]


def stamps(folder: Path) -> dict[str, int]:
    return {name: (folder / name / "summary.json").stat().st_mtime_ns for name in NAMES}


def test_every_run_leaves_a_folder_and_nothing_is_done_twice(studied: Path) -> None:
    assert sorted(path.name for path in studied.iterdir() if path.is_dir()) == NAMES
    before = stamps(studied)
    again = fedpm("study", "run", str(studied.parent / "small.toml"), "--seeds", "1", "--out", str(studied))
    assert again.returncode == 0, again.stderr
    assert stamps(studied) == before
    assert "run " not in again.stdout
    assert "MB to 0.1" in again.stdout


def test_a_folder_of_another_study_is_refused(studied: Path) -> None:
    other = fedpm("study", "run", str(studied.parent / "small.toml"), "--set", "rounds=9", "--out", str(studied))
    assert other.returncode == 1
    assert "holds a study with other settings" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    loose = fedpm("study", "run", "digits", "--out", str(studied / NAMES[0]))
    assert "exists and holds no study" in loose.stderr


def test_an_interrupted_study_continues_where_it_stopped(studied: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["study", "run", str(studied.parent / "small.toml"), "--seeds", "1", "--out", str(out)]
    program = str(Path(sys.executable).with_name("fedpm"))
    process = subprocess.Popen([program, *command, "--processes", "1"], stderr=subprocess.PIPE, text=True)
    first = out / "2_fedpm_seed0" / "summary.json"
    begun = out / "2_eden_seed0" / "config.toml"
    while not (first.exists() and begun.exists()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("fedpm: interrupted; what is done is in")
    stamp = first.stat().st_mtime_ns
    done = fedpm(*command)
    assert done.returncode == 0, done.stderr
    assert first.stat().st_mtime_ns == stamp
    for name in NAMES:
        model = "model.safetensors" if "eden" in name else "model.fedpm"
        assert (out / name / model).read_bytes() == (studied / name / model).read_bytes(), name


def test_failures_are_listed_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'title = "Fails"\nsettings = { rounds = 1, "local.epochs" = 1, "clients.total" = 2, "data.test_examples" = 60 }\n'
        'axes = { "data.train_examples" = [99999, 60] }'
    )
    done = fedpm("study", "run", "s.toml", "--seeds", "1", "--out", "out", "--processes", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "fedpm: 1 of 2 runs failed; the same command tries them again" in done.stderr
    assert "99999_seed0: data.train_examples = 99999: digits has only 1438" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "60_seed0" / "summary.json").exists()
    assert "60_seed0  accuracy" in done.stdout


def test_wrong_settings_are_told_before_anything_runs(tmp_path: Path) -> None:
    done = fedpm("study", "run", "digits", "--set", "rounds=0", "--out", str(tmp_path / "x"))
    assert done.returncode == 2
    assert "rounds = 0" in done.stderr
    assert not (tmp_path / "x").exists()


def test_list_names_every_study() -> None:
    done = fedpm("study", "list")
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout
