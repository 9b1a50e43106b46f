"""Clients that lie in real runs: every attack arrives as it is meant, and the record says who was left out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from benchmarks import attacks
from benchmarks.__main__ import main
from benchmarks.attacks import Liars
from benchmarks.lies import ATTACKS, CHANGES, LABELS, View

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Engine
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.round import run_round
from fedpm.methods.mask import state as mask_state
from fedpm.methods.mask.fedpm import FedPM
from fedpm.registry import CODERS
from fedpm.report.page import write
from fedpm.report.rejected import rejected_table
from fedpm.rng import Streams
from fedpm.study.results import collect
from tests.experiment.test_loop import without_times
from tests.report.light import svg_alone
from tests.small import small_config, small_net

FIVE: dict[str, Any] = {"clients": {"total": 5}, "rounds": 2, "local": {"epochs": 1}, "codec": "shared-randomness"}


def lying(attack: str, *liars: int) -> Callable[[Experiment], Engine]:
    return lambda experiment: Liars(experiment, attack, liars)


def made(data: Dataset, **settings: Any) -> Experiment:
    return build(small_config(**{**FIVE, **settings}), net=small_net(), data=data)


def test_attacks_want_what_they_say() -> None:
    theta = np.array([0.0, 0.2, 0.5, 0.9, 1.0], np.float32)
    masks = [np.array(bits, np.uint8) for bits in ([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1])]
    view = View(theta, masks, 1, lambda: masks[0], Streams(0).at(1, 0))
    assert np.allclose(view.mean, [0, 1 / 3, 1, 1, 2 / 3])
    wanted: dict[str, list[float]] = {
        "inverted": [1, 1, 0, 0, 0],
        "ones": [1] * 5,
        "zeros": [0] * 5,
        "contrary": [1, 1, 1, 0, 0],
        "opposite": [0, 0, 0, 0.4, 1],  # θ − 5 (mean − θ), within 0 and 1
        "mirrored": [0, 0.2 - 2 / 15, 0, 0.8, 1],
        "votes": [0, 1, 1, 1, 0],  # one liar turns margins of one vote, those of the second and of the last
    }
    for name, expected in wanted.items():
        assert np.allclose(ATTACKS[name](view), expected, atol=1e-6), name
    assert set(ATTACKS["random"](view)) <= {0, 1}
    assert set(ATTACKS["hidden"](view)) <= {0, 1}
    assert set(ATTACKS["wary"](view)) <= {0, 1}
    assert np.array_equal(CHANGES["mirrored"](view), -view.mean)


@pytest.mark.parametrize("codec", [spec.name for spec in CODERS if not spec.secure])
def test_a_lie_arrives_as_a_real_upload_of_every_coder(codec: str, data: Dataset) -> None:
    experiment = made(data, codec=codec, aggregator="mean")
    _, clean = run_round(experiment, Liars(experiment, "ones", ()), experiment.method.init())
    state, record = run_round(experiment, Liars(experiment, "ones", (4,)), experiment.method.init())
    assert not record["rejected"]
    assert record["uplink_bytes"] != clean["uplink_bytes"]
    least = 0.8 if codec == "relative-entropy" else 1.0  # whose masks are a little changed
    assert np.mean(state.posterior.ones >= 1) >= least


@pytest.mark.parametrize("codec", [spec.name for spec in CODERS if not spec.secure])
def test_a_clean_run_is_that_of_the_plain_mean_to_the_byte(codec: str, data: Dataset) -> None:
    filtered, plain = (
        fedpm.run(small_config(**FIVE | {"codec": codec, "aggregator": rule}), net=small_net(), data=data)
        for rule in ("auto", "mean")
    )
    assert filtered.file.coded_mask == plain.file.coded_mask
    for ours, theirs in zip(filtered.rounds, plain.rounds, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("attack", ["inverted", "ones", "zeros", "random", "contrary"])
def test_a_lie_is_left_out_and_the_next_round_goes_on_without_it(attack: str, data: Dataset) -> None:
    experiment = made(data)
    method = cast(FedPM, experiment.method)
    engine = Liars(experiment, attack, (1,))
    first, record = run_round(experiment, engine, method.init())
    assert list(record["rejected"]) == ["1"]
    assert "flips beyond what θ predicts" in record["rejected"]["1"]
    assert record["faults"] == {"outlier": 1}
    assert first.posterior.total == 4
    assert sorted(method.holders(first)) == [0, 2, 3, 4]
    told = method.reader.read(method.broadcast(first, since=1).payload, 2, method.memory(first))
    assert np.array_equal(told.posterior.ones, first.posterior.ones)  # no lie is passed on
    assert list(run_round(experiment, engine, first)[1]["rejected"]) == ["1"]


def test_uploads_that_wait_in_a_file_are_the_same(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for held in (mask_state.HELD, 1):
        monkeypatch.setattr(mask_state, "HELD", held)
        result = fedpm.run(small_config(**FIVE), net=small_net(), data=data, start=lying("inverted", 2))
        models.append(result.file.to_bytes())
        assert [list(record["rejected"]) for record in result.rounds] == [["2"], ["2"]]
    assert models[0] == models[1]


def test_a_run_with_liars_resumes_to_the_same_bytes_and_a_table_names_them(data: Dataset, tmp_path: Path) -> None:
    def stop(round: fedpm.Round) -> None:
        round.stop()

    given: dict[str, Any] = {"net": small_net(), "data": data, "start": lying("inverted", 3)}
    whole = fedpm.run(small_config(**FIVE), out=tmp_path / "whole", **given)
    fedpm.run(small_config(**FIVE), out=tmp_path / "part", on_round=stop, **given)
    resumed = fedpm.resume(tmp_path / "part", **given)
    assert resumed.file.to_bytes() == whole.file.to_bytes()
    assert without_times(tmp_path / "part") == without_times(tmp_path / "whole")
    assert list(RunFolder(tmp_path / "part").records()[1]["rejected"]) == ["3"]
    (table,) = rejected_table(*collect([tmp_path / "part"]))
    head, row = table.to_csv().splitlines()
    assert head == "client,times,rounds,the last time because"
    assert row.startswith('3,2,1–2,"')
    assert "flips beyond what θ predicts" in row


def test_a_run_without_lies_has_no_table_of_them(small_run: tuple[Path, fedpm.Result]) -> None:
    assert rejected_table(*collect([small_run[0]])) == []


@pytest.mark.slow
def test_the_page_of_a_run_shows_who_was_left_out(data: Dataset, tmp_path: Path) -> None:
    config = small_config(**FIVE | {"rounds": 1})
    fedpm.run(config, net=small_net(), data=data, out=tmp_path / "run", start=lying("ones", 3))
    with svg_alone():
        page = write([tmp_path / "run"], tmp_path / "report")
    assert "Uploads left out" in page.read_text()
    assert (page.parent / "tables" / "rejected.csv").is_file()


def test_labels_are_turned_around_and_nothing_else(data: Dataset) -> None:
    experiment = made(data)
    liars = Liars(experiment, LABELS, (0,))
    assert np.array_equal(liars._flipped.train.y, 9 - experiment.clients.train.y)
    honest, flipped = (
        run_round(experiment, Liars(experiment, LABELS, who), experiment.method.init())[0] for who in ((), (0,))
    )
    assert not np.array_equal(honest.posterior.ones, flipped.posterior.ones)
    assert np.abs(honest.posterior.ones.astype(int) - flipped.posterior.ones).max() == 1  # of one client


@pytest.mark.parametrize("attack", CHANGES)
def test_changes_of_weights_can_lie_too(attack: str, data: Dataset) -> None:
    experiment = made(data, algorithm="fedavg", codec="auto")
    honest, lied = (
        run_round(experiment, Liars(experiment, attack, who), experiment.method.init())[0].weights for who in ((), (0,))
    )
    start = experiment.method.init().weights
    assert np.linalg.norm(lied - start) < np.linalg.norm(honest - start)


@pytest.mark.slow
def test_the_table_resumes_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"model.name": "conv4-slim", "rounds": 1, "local.epochs": 1, "clients.total": 4, "data.train_examples": 80}
    monkeypatch.setitem(attacks.SETTINGS, "small", tiny)
    out = tmp_path / "attacks.jsonl"
    words = ["attacks", "--out", str(out), "--attack", "zeros", "--rule", "flip-filter", "--liars", "1"]
    main(words)
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["lies"], row["lies_rejected"], row["honest"], row["honest_rejected"]) == (1, 1, 3, 0)
    main([*words, "--table"])
    assert out.read_text().count("\n") == 1
    assert f"| zeros | 1 | {attacks.score(row):.3f} (100 % out) |" in capsys.readouterr().out


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    root = Path(__file__).parents[2]
    rows = [json.loads(line) for line in (root / "results/attacks.jsonl").read_text().splitlines()]
    page = (root / "docs/security.md").read_text().splitlines()
    shown = [row for row in rows if row["setting"] in ("small", "hundred", "fedavg")]
    assert shown
    assert [line for line in attacks.table(shown).splitlines() if line.startswith("| ") and line not in page] == []
    honest = [row for row in rows if row["setting"] in ("two-classes", "dirichlet")]
    assert (sum(row["honest"] for row in honest), sum(row["honest_rejected"] for row in honest)) == (600, 0)
