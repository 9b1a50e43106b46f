"""The program: a run as users start it, killed and interrupted in real processes, and all else in this one."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from fedpm.cli.run import _unused
from fedpm.model.weights import Weights, WeightsHeader
from fedpm.study.definition import studies
from tests.command import FEDPM, fedpm, wait_until

SETTINGS = [
    "rounds=6",
    "keep=best",
    "model.name=conv4-slim",
    "clients.total=2",
    "local.epochs=1",
    "data.train_examples=100",
]
QUICK = ["--preset", "quickstart", *(part for setting in SETTINGS for part in ("--set", setting))]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a run by the installed program, and the list of what that imported."""
    folder = tmp_path_factory.mktemp("cli") / "one"
    command = [FEDPM, "run", *QUICK, "--workers", "1", "--out", str(folder)]
    told = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=told)
    assert done.returncode == 0, done.stderr
    assert "round 6/6  accuracy" in done.stdout
    assert f"folder    {folder}" in done.stdout
    return folder, done.stderr


@pytest.fixture(scope="module")
def undisturbed(started: tuple[Path, str]) -> Path:
    return started[0]


def test_the_version_is_told() -> None:
    told = f"fedpm {version('fedpm')}\n"
    assert fedpm("--version").stdout == told
    assert subprocess.check_output([sys.executable, "-m", "fedpm", "--version"], text=True) == told


@pytest.mark.slow
def test_a_run_imports_no_compiler(started: tuple[Path, str]) -> None:
    assert " torch\n" in started[1]
    assert "torch._dynamo\n" not in started[1]


def rounds_without_times(folder: Path) -> list[str]:
    return [line.split('"seconds"')[0] for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_written_config_repeats_the_run_and_workers_change_nothing(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    done = fedpm("run", "--config", undisturbed / "config.toml", "--workers", "2", "--out", out)
    assert done.code == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()
    assert rounds_without_times(out) == rounds_without_times(undisturbed)


@pytest.mark.slow
def test_kill_nine_and_resume_end_in_the_same_model(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    log = out / "rounds.jsonl"
    command = [FEDPM, "run", *QUICK, "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    wait_until(lambda: log.exists() and "\n" in log.read_text(), process)
    children = _children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    assert children
    deadline = time.monotonic() + 60
    while any(_running(pid) for pid in children):  # workers never outlive their parent
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = fedpm("run", "--resume", out, "--workers", "1")
    assert done.code == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()
    assert rounds_without_times(out) == rounds_without_times(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_says_how_to_go_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    command = [FEDPM, "run", *QUICK, "--set", "rounds=5000", "--workers", "1", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until((out / "rounds.jsonl").exists, process)
    time.sleep(0.2)  # amid the work of a later round
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert stderr.startswith("fedpm: interrupted; nothing that was saved is lost")
    assert stderr.strip().endswith(f"continue with: fedpm run --resume {out}")
    assert len(stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "full"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # a checkpoint is larger
    try:
        done = fedpm("run", *QUICK, "--workers", "1", "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 1
    assert done.stderr.startswith(f"fedpm: {out}: File too large; nothing that was saved is lost")
    assert len(done.stderr.splitlines()) == 1
    done = fedpm("run", "--resume", out)
    assert done.code == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()


@pytest.mark.slow
def test_a_run_goes_on_longer(undisturbed: Path, tmp_path: Path) -> None:
    out, sets = tmp_path / "longer", ["--set", "rounds=1"]
    assert fedpm("run", *QUICK, *sets, "--workers", "1", "--out", out).code == 0
    refused = fedpm("run", "--resume", out, "--set", "local.epochs=2")
    assert refused.code == 2
    assert refused.stderr.startswith("fedpm: local.epochs: a run goes on with the settings it began with")
    done = fedpm("run", "--resume", out, "--set", "rounds=6", "--workers", "1")
    assert done.code == 0, done.stderr
    assert "round 2/6  accuracy" in done.stdout
    assert re.search(r"after (\d of )?6 rounds in", done.stdout)
    assert (out / "model.fedpm").read_bytes() == (undisturbed / "model.fedpm").read_bytes()
    assert rounds_without_times(out) == rounds_without_times(undisturbed)
    done = fedpm("run", "--resume", out)
    told = "Nothing was trained: this run had done its 6 rounds before; to go on longer, add --set rounds=N.\n"
    assert done.stdout.endswith(told)
    done = fedpm("run", "--resume", out, "--set", "rounds=3")
    assert (done.code, done.stderr) == (2, "fedpm: rounds = 3: this run has done 6 already; give at least 6\n")


def test_a_run_that_patience_ended_is_told_to_go_on_with_more_of_it(tmp_path: Path) -> None:
    sets = [*QUICK, "--set", "rounds=3", "--set", "local.lr=1e-9", "--set", "stop.patience=1", "--workers", "1"]
    assert fedpm("run", *sets, "--out", tmp_path).code == 0
    for more in ([], ["--set", "rounds=9"]):
        done = fedpm("run", "--resume", tmp_path, *more)
        assert done.stdout.endswith(
            "Nothing was trained: the last round of this run was no better on validation data, which ended it; to go "
            "on longer, add --set stop.patience=N, of more than 1.\n"
        )


def test_all_config_errors_at_once_and_exit_code_two() -> None:
    done = fedpm("run", "--set", "clients.sampled=20", "--set", "clients.total=10", "--set", "nonsense=1")
    assert done.code == 2
    assert "clients.sampled = 20 should be at most clients.total = 10" in done.stderr
    assert "nonsense = 1: unknown key" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--preset", "x"], 2, "no such preset"),
        (["run", "--preset", "quickstart", "--config", "c.toml"], 2, "give only one"),
        (["run", "--resume", "nowhere"], 1, "nowhere: there is no such file or folder; give that of a run"),
        (["run", "--resume", "."], 1, "holds no config.toml, so it is not a run folder"),
        (
            ["run", "--set", "data.name=own"],
            2,
            "comes from Python only; give it there: fedpm.run(data=…) for a new run",
        ),
        (["run", "--resume", "nowhere", "--device", "cpu"], 2, "give nothing beside it but --workers"),
        (
            ["run", "--resume", "x", "--out", "y"],
            2,
            "--set rounds=N and stop.patience=N to go on longer",
        ),
        (["run", "--resume", "nowhere", "--set", "rounds"], 2, "--set rounds: should be KEY=VALUE"),
        (["run", "--device", "cuda:77"], 2, "device = 'cuda:77'"),
        (["run", "--workers", "none"], 2, "workers = 'none'"),
        (["run", "--out", "/dev/null/x"], 1, "Not a directory; nothing was begun"),
        (["model", "inspect", "missing.fedpm"], 1, "missing.fedpm: there is no such file or folder"),
        (["model", "export", "missing.fedpm"], 2, "give one of --onnx OUT and --torch OUT"),
        (["study", "run", "nonsense"], 2, "there is no such study; there are: ablation, coders, effort"),
        (["study", "run", "iid-digits", "--set", "rounds=0"], 2, "rounds = 0"),
        (["report", "nowhere"], 1, "nowhere: there is no such file or folder; give what fedpm run or study run wrote"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = fedpm(*arguments, cwd=tmp_path)
    assert done.code == code
    assert done.stderr.startswith("fedpm: ")
    assert words in done.stderr


@pytest.mark.slow
def test_studies_are_listed_with_their_size() -> None:
    lines = {line.split()[0]: line for line in fedpm("study", "list").stdout.splitlines()}
    assert set(studies()) < set(lines)
    assert lines["coders"].split()[-4:] == ["4", "runs", "12", "runs"]  # four coders, with one seed and with three


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
    file = undisturbed / "model.fedpm"
    seen = fedpm("model", "inspect", file)
    assert seen.code == 0, seen.stderr
    assert "conv4-slim, 117,754 parameters" in seen.stdout
    assert "█" in seen.stdout
    plain, packed = fedpm("model", "eval", file), fedpm("model", "eval", file, "--packed")
    assert plain.stdout == packed.stdout
    accuracy = json.loads((undisturbed / "summary.json").read_text())["accuracy"]
    assert f"accuracy {accuracy:.4f}" in plain.stdout
    done = fedpm("model", "export", file, "--torch", tmp_path / "m.safetensors")
    assert done.code == 0, done.stderr
    assert (tmp_path / "m.safetensors").stat().st_size > 30 * file.stat().st_size


@pytest.mark.slow
def test_an_export_says_what_it_is_in_either_format(undisturbed: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    for option, name in (("--onnx", "m.onnx"), ("--torch", "m.safetensors")):
        assert fedpm("model", "export", undisturbed, option, tmp_path / name).code == 0
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    header = WeightsHeader.model_validate_json(session.get_modelmeta().custom_metadata_map["fedpm"])
    assert header == Weights.open(tmp_path / "m.safetensors").header
    assert (header.classes, header.input_shape) == (tuple("0123456789"), (1, 8, 8))
    assert header.preprocessing


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    names = [_unused(tmp_path / "20261117-084404")]
    for _ in range(2):
        names[-1].mkdir()
        names.append(_unused(tmp_path / "20261117-084404"))
    assert [name.name for name in names] == ["20261117-084404", "20261117-084404-2", "20261117-084404-3"]
