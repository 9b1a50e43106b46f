"""The program as users run it: real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

FEDPM = [str(Path(sys.executable).with_name("fedpm"))]
QUICK = ["--preset", "quickstart", "--set", "rounds=3", "--set", "local.epochs=1", "--set", "data.train_examples=300"]


def fedpm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FEDPM, *arguments], capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "one"
    done = fedpm("run", *QUICK, "--workers", "1", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert "round 3/3  accuracy" in done.stdout
    assert f"folder    {folder}" in done.stdout
    return folder


def test_the_version_is_told() -> None:
    assert fedpm("--version").stdout == f"fedpm {version('fedpm')}\n"


def test_a_run_imports_no_compiler(tmp_path: Path) -> None:
    told = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = fedpm("run", *QUICK, "--workers", "1", "--set", "rounds=1", "--out", str(tmp_path / "run"), env=told)
    assert done.returncode == 0, done.stderr
    assert " torch\n" in done.stderr
    assert "torch._dynamo\n" not in done.stderr


def rounds_without_times(folder: Path) -> list[str]:
    return [line.split('"seconds"')[0] for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_workers_change_nothing(undisturbed: Path, tmp_path: Path) -> None:
    done = fedpm("run", *QUICK, "--workers", "2", "--out", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()
    assert rounds_without_times(tmp_path / "two") == rounds_without_times(undisturbed)


@pytest.mark.slow
def test_the_written_config_repeats_the_run(undisturbed: Path, tmp_path: Path) -> None:
    done = fedpm("run", "--config", str(undisturbed / "config.toml"), "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()


@pytest.mark.slow
def test_kill_nine_and_resume_end_in_the_same_model(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = subprocess.Popen([*FEDPM, "run", *QUICK, "--workers", "2", "--out", str(out)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "rounds.jsonl").exists() or len((out / "rounds.jsonl").read_text().splitlines()) < 1:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = _children(process.pid)
    process.kill()
    process.wait()
    assert children
    while any(_running(pid) for pid in children):  # workers never outlive their parent
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = fedpm("run", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()
    assert rounds_without_times(out) == rounds_without_times(undisturbed)


@pytest.mark.slow
def test_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    process = subprocess.Popen(
        [*FEDPM, "run", *QUICK, "--set", "rounds=50", "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    while not (out / "rounds.jsonl").exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.startswith("fedpm: interrupted; nothing that was saved is lost")
    assert stderr.strip().endswith(f"continue with: fedpm run --resume {out}")
    assert len(stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "full"
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
    command = f"{limit} sys.argv = ['fedpm', *sys.argv[1:]]; from fedpm.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "run", *QUICK, "--workers", "1", "--out", str(out)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"fedpm: {out}: File too large; nothing that was saved is lost")
    assert len(done.stderr.splitlines()) == 1
    done = fedpm("run", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()


def test_all_config_errors_at_once_and_exit_code_two() -> None:
    done = fedpm("run", "--set", "clients.sampled=20", "--set", "clients.total=10", "--set", "nonsense=1")
    assert done.returncode == 2
    assert "clients.sampled = 20 should be at most clients.total = 10" in done.stderr
    assert "nonsense = 1: unknown key" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--preset", "x"], 2, "no such preset"),
        (["run", "--preset", "quickstart", "--config", "c.toml"], 2, "give only one"),
        (["run", "--resume", "nowhere"], 1, "not a run folder"),
        (["run", "--resume", "nowhere", "--set", "rounds=3"], 2, "give no option beside it"),
        (["run", "--device", "cuda:77"], 2, "device = 'cuda:77'"),
        (["run", "--workers", "none"], 2, "workers = 'none'"),
        (["run", "--out", "/dev/null/x"], 1, "Not a directory; nothing was begun"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = fedpm(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_presets_and_every_key() -> None:
    done = fedpm("run", "--help")
    assert done.returncode == 0
    for word in ("quickstart", "clients.rho", "aggregation.reset_every", "--resume"):
        assert word in done.stdout


def test_help_does_not_import_torch() -> None:
    code = "import sys; import fedpm.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in listed.split()]


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_model_commands_on_a_trained_model(undisturbed: Path, tmp_path: Path) -> None:
    file = str(undisturbed / "model.fedpm")
    seen = fedpm("model", "inspect", file)
    assert seen.returncode == 0, seen.stderr
    assert "conv4, 458,698 parameters" in seen.stdout
    assert "█" in seen.stdout
    plain, packed = fedpm("model", "eval", file), fedpm("model", "eval", file, "--packed")
    assert plain.stdout == packed.stdout
    accuracy = json.loads((undisturbed / "summary.json").read_text())["accuracy"]
    assert f"accuracy {accuracy:.4f}" in plain.stdout
    done = fedpm("model", "export", file, "--torch", str(tmp_path / "m.safetensors"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.safetensors").stat().st_size > 30 * (undisturbed / "model.fedpm").stat().st_size


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["model", "inspect", "missing.fedpm"], 1, "cannot read this file"),
        (["model", "export", "missing.fedpm"], 2, "give one of --onnx OUT and --torch OUT"),
        (["study", "run", "nonsense"], 2, "there is no such study; there are: coders, gamma"),
        (["study", "run", "iid-digits", "--set", "rounds=0"], 2, "rounds = 0"),
        (["report", "nowhere"], 1, "nowhere: neither a run folder nor a study's"),
    ],
)
def test_wrong_use_of_other_commands(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = fedpm(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
