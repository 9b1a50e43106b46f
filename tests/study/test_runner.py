"""Studies in real processes: interrupted, failing, continued."""

import os
import shutil
import signal
import subprocess
from multiprocessing import active_children
from pathlib import Path

import pytest

from fedpm.errors import ArtifactError
from fedpm.study.definition import load
from fedpm.study.runner import Event, prepare, run_all
from tests.command import FEDPM, fedpm, wait_until
from tests.marked import marked

pytestmark = pytest.mark.slow
NAMES = ["2_eden_seed0", "2_fedpm_seed0"]


def stamps(folder: Path) -> dict[str, int]:
    return {name: (folder / name / "summary.json").stat().st_mtime_ns for name in NAMES}


def test_every_run_leaves_a_folder_and_nothing_is_done_twice(studied: Path) -> None:
    assert sorted(path.name for path in studied.iterdir() if path.is_dir()) == NAMES
    before = stamps(studied)
    seen: list[Event] = []
    assert run_all(load(str(studied.parent / "small.toml")).runs(1), studied, 2, seen.append) == {}
    assert [event.what for event in seen] == ["found", "found"]
    assert stamps(studied) == before


def test_a_folder_of_another_study_is_refused(studied: Path) -> None:
    with pytest.raises(ArtifactError, match=r"holds a study with other settings \(rounds = 9 instead of 2\): choose"):
        prepare(studied, load(str(studied.parent / "small.toml"), None, ["rounds=9"]))
    with pytest.raises(ArtifactError, match="exists and holds no study"):
        prepare(studied / NAMES[0], load("iid-digits"))


def test_an_interrupted_study_continues_where_it_stopped(studied: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(studied, out, ignore=shutil.ignore_patterns("2_eden_seed0"))
    arguments = ["study", "run", str(studied.parent / "small.toml"), "--seeds", "1", "--out", str(out)]
    process = subprocess.Popen([FEDPM, *arguments, "--processes", "1"], stderr=subprocess.PIPE, text=True)
    wait_until((out / "2_eden_seed0" / "config.toml").exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)  # which ends once the run's own two workers have ended too
    assert process.returncode == 130
    assert errors.startswith("fedpm: interrupted; what is done is in")
    assert len(errors.splitlines()) == 1
    assert not (out / "2_eden_seed0" / "summary.json").exists()
    first = out / "2_fedpm_seed0" / "summary.json"
    stamp = first.stat().st_mtime_ns
    done = fedpm(*arguments)
    assert done.code == 0, done.stderr
    assert "run 2 of 2  2_eden_seed0  accuracy" in done.stdout
    assert "MB to 0.1" in done.stdout
    assert first.stat().st_mtime_ns == stamp
    model = Path("2_eden_seed0") / "model.safetensors"
    assert (out / model).read_bytes() == (studied / model).read_bytes()


def test_a_study_that_is_killed_leaves_no_run_and_no_worker_behind(studied: Path, tmp_path: Path) -> None:
    command = [FEDPM, "study", "run", str(studied.parent / "small.toml"), "--seeds", "1", "--processes", "1"]
    settings = ["--set", "rounds=1000", "--set", "workers=2", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "MARK": str(tmp_path)}
    with subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, env=environment, text=True) as process:
        log = tmp_path / "out" / "2_fedpm_seed0" / "rounds.jsonl"
        wait_until(lambda: log.exists() and log.read_text() != "", process)
        assert len(marked(tmp_path)) >= 4  # the study, a run, and its workers
        process.kill()
    assert not marked(tmp_path, patience=10)


def test_a_process_makes_one_run_after_another_and_one_that_dies_takes_only_its_own_along(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'title = "Short"\nbase = "quickstart"\n'
        'settings = { rounds = 2, workers = 1, "local.epochs" = 1, "clients.total" = 2, "model.name" = "mlp" }\n'
        'axes = { "data.train_examples" = [60, 61, 62] }'
    )
    seen: list[tuple[str, str, int | None]] = []

    def watch(event: Event) -> None:
        for process in active_children():  # there is none when one has just died
            seen.append((event.run.name, event.what, process.pid))
            if event.run.name == "61_seed0":
                process.kill()

    failures = run_all(load(str(tmp_path / "s.toml")).runs(1), tmp_path / "out", 1, watch)
    assert list(failures) == ["61_seed0"]
    assert "ended with code -9" in failures["61_seed0"]
    first, second, third = ({pid for name, what, pid in seen if name == f"{n}_seed0"} for n in (60, 61, 62))
    assert first == second != third
    assert seen[-1][:2] == ("62_seed0", "done")


def test_failures_are_listed_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'title = "Fails"\nbase = "quickstart"\n'
        'settings = { rounds = 1, workers = 1, "local.epochs" = 1, "clients.total" = 2, "model.name" = "mlp" }\n'
        'axes = { "data.train_examples" = [99999, 60] }'
    )
    done = fedpm("study", "run", "s.toml", "--seeds", "1", "--out", "out", "--processes", "1", cwd=tmp_path)
    assert done.code == 1
    assert "fedpm: 1 of 2 runs failed; the same command tries them again" in done.stderr
    assert "99999_seed0: data.train_examples = 99999: digits has only 1438" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "60_seed0" / "summary.json").exists()
    assert "60_seed0  accuracy" in done.stdout


def test_chosen_rows_run_alone_and_the_others_can_follow(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'title = "Rows"\nbase = "quickstart"\n'
        'settings = { rounds = 1, workers = 1, "local.epochs" = 1, "clients.total" = 2, "model.name" = "mlp" }\n'
        'axes = { "data.train_examples" = [80, 60], algorithm = ["fedpm", "fedavg"] }'
    )
    command = ["study", "run", "s.toml", "--seeds", "1", "--out", "out", "--processes", "1"]
    assert fedpm(*command, "--only", "fedavg", "--only", "60", cwd=tmp_path).code == 0
    assert [path.parent.name for path in tmp_path.glob("out/*/summary.json")] == ["60_fedavg_seed0"]
    assert fedpm(*command, "--only", "60", cwd=tmp_path).code == 0
    assert len(list(tmp_path.glob("out/*/summary.json"))) == 2
    wrong = fedpm(*command, "--only", "fedavgg", cwd=tmp_path)
    assert wrong.code == 2
    assert wrong.stderr.startswith("fedpm: s.toml: no row is called 'fedavgg'; did you mean fedavg?")
