"""That the benchmarks measure; what they measure depends on the machine, but for memory."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from benchmarks import drills, memory, norms, secure_sum, server, step, studies, whitening
from benchmarks.__main__ import MEASUREMENTS, SCRIPTS, main
from benchmarks.experiments import noise_experiment
from benchmarks.research_code import ResearchNetwork, train_round
from benchmarks.timing import timed

from fedpm.errors import ConfigError
from fedpm.training.device import threads

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_listed_and_has_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    assert modules - {"timing", "experiments", "research_code", "lies"} == {*MEASUREMENTS, *SCRIPTS}
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listing = capsys.readouterr().out
    for name, text in (MEASUREMENTS | SCRIPTS).items():
        assert text in listing
        assert callable(getattr(import_module(f"benchmarks.{name}"), "run" if name in MEASUREMENTS else "main"))


def test_a_script_has_a_help_page_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in SCRIPTS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        page = capsys.readouterr().out
        assert page.startswith(f"usage: python -m benchmarks {name}")
        assert f"python -m benchmarks {name}" in page.split("\n\n", 1)[1]  # an example


def test_a_script_among_measurements_says_that_it_runs_alone() -> None:
    with pytest.raises(ConfigError, match="fuzz has options of its own and runs alone: python -m benchmarks fuzz"):
        main(["step", "fuzz"])


def test_an_unknown_name_is_one_sentence_and_exit_code_2() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "spet"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    known = ", ".join([*MEASUREMENTS, *SCRIPTS])
    assert done.stderr == f"benchmarks: spet: there is no such benchmark; there are: {known}\n"


@pytest.mark.slow
def test_fuzzing_ends_with_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fuzz", "--mutations", "200", "--only", "model"])
    assert capsys.readouterr().out.startswith("200 damaged: ")


@pytest.mark.slow
def test_norm_statistics_add_a_fifth_to_an_upload_at_most() -> None:
    (row,) = norms.run({"resnet18-slim": (2, 4, 1)})
    assert 1.05 < row["upload / mask"] <= norms.MOST


@pytest.mark.slow
def test_a_study_and_programs_make_the_same_short_runs() -> None:
    assert [row["case"] for row in studies.run(1, 1)] == [
        "1 runs, by the processes of a study",
        "1 runs, by a program each",
    ]


def test_cases_take_turns() -> None:
    order: list[str] = []
    seconds = timed({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 3
    assert all(value >= 0 for value in seconds.values())


def test_a_whitened_step_is_measured_beside_a_plain_one() -> None:
    row = whitening.measure("conv4-slim", (1, 8, 8), 2, torch.float32)
    assert row["network"] == "conv4-slim, 1×8×8, batch 2"
    assert row["whitened / plain"] > 0


@pytest.mark.slow
def test_a_masked_step_is_measured_beside_a_dense_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "NETWORKS", ["CONV-4, 8×8"])
    out = tmp_path / "figures.json"
    main(["step", "--out", str(out)])
    (row,) = json.loads(out.read_text())["step"]
    assert row["masked / dense"] == pytest.approx(row["masked ms"] / row["dense ms"])
    assert 0 < row["random bits ms"] < row["masked ms"]
    printed = capsys.readouterr().out
    assert MEASUREMENTS["step"].split(" beside ")[0] in printed
    assert "CONV-4" in printed


@pytest.mark.slow
def test_the_servers_memory_does_not_grow_with_the_clients_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "COUNTS", (1, 4))
    monkeypatch.setattr(server, "MANY", (5, 50))
    few, many, *small, sampling = server.run()
    assert many["peak MB"] < 1.02 * few["peak MB"]
    assert small[1]["peak MB"] < 1.5 * small[0]["peak MB"]
    assert sampling["seconds"] > 0


def test_secure_sums_are_measured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_sum, "COUNTS", (10,))
    whole, without_one = secure_sum.run(size=10_000)
    assert whole["bpp up"] > without_one["bpp up"] > 0.9 * whole["bpp up"]
    assert whole["client ms"] > 0


@pytest.mark.slow
def test_memory_of_a_run_is_read_after_every_round() -> None:
    row = memory.growth(4)
    assert row["quarter 4 MB"] > 50
    assert row["last / second quarter"] == pytest.approx(1, abs=0.5)


@pytest.mark.slow
def test_the_most_memory_of_a_round_is_that_of_its_own_process() -> None:
    assert 1e8 < memory.peak("CONV-4, 8×8") < 2e10


@pytest.mark.slow
def test_research_code_learns_masks_too() -> None:
    experiment = noise_experiment("CONV-4, 8×8", clients=2, steps=1)
    train = experiment.clients.train
    network = ResearchNetwork(experiment.method.network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with threads(1):
        train_round(network, [train.take(part) for part in experiment.clients.parts], epochs=1, batch_size=65)
    state = {name: value for name, value in network.state_dict().items() if not value.is_meta}
    changed = {name for name, value in state.items() if not value.equal(before[name])}
    assert changed == {name for name in before if name.startswith("s_")}


def test_a_run_that_does_not_survive_is_named_and_ends_in_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def crash() -> bytes:
        raise ValueError("torn")

    trials = {"first": lambda: b"model", "second": lambda: b"other", "third": lambda: None, "fourth": crash}
    assert drills.survivors(trials, b"model") == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["second", "third", "fourth"]
    assert said[-1] == "fourth: ValueError: torn"
    drills.report([drills.Drill("a cut", 2, 2), drills.Drill("not here", 0, 0)])
    with pytest.raises(SystemExit, match="1"):
        drills.report([drills.Drill("a cut", 2, 2), drills.Drill("a kill", 2, 1)])


@pytest.mark.slow
def test_a_killed_run_is_taken_up_and_ends_in_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("data.train_examples=100", "data.test_examples=20", "clients.total=2")
    monkeypatch.setattr(drills, "SETTINGS", (*drills.SETTINGS, *small))
    killed = drills.kills(tmp_path, 1, seed=9)  # near the middle of the run: a later kill may come too late
    assert (killed.times, killed.survived) == (1, 1)
