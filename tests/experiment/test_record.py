"""What a run records about itself: θ, layers, classes of clients, TensorBoard events."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.record import RoundRecord, Summary, complaints
from tests.small import small_config, small_net

SIZES = [64 * 32, 32, 32 * 10, 10]


def test_theta_is_recorded_as_a_histogram_and_by_layer(small_run: tuple[Path, fedpm.Result]) -> None:
    for record in small_run[1].rounds:
        assert len(record["theta_histogram"]) == 21
        assert sum(record["theta_histogram"]) == sum(SIZES)
        mean = np.average(record["theta_layers"], weights=SIZES)
        middles = np.linspace(0, 1, 21)
        assert abs(np.average(middles, weights=record["theta_histogram"]) - mean) <= 0.025  # half a bin
    # θ of a plain mean of 4 masks is a quarter of an integer
    filled = np.flatnonzero(small_run[1].rounds[-1]["theta_histogram"])
    assert set(filled.tolist()) <= {0, 5, 10, 15, 20}


def test_the_summary_holds_the_share_of_kept_weights(small_run: tuple[Path, fedpm.Result]) -> None:
    summary = json.loads((small_run[0] / "summary.json").read_text())
    model = fedpm.Model.open(small_run[0] / "model.fedpm")
    mask = model.mask(model.masked(net=small_net()))
    assert [layer["size"] for layer in summary["layers"]] == SIZES
    assert [layer["name"] for layer in summary["layers"]] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert math.isclose(sum(layer["kept"] * layer["size"] for layer in summary["layers"]), mask.sum(), abs_tol=0.01)


def test_the_folder_holds_the_classes_of_each_client(small_run: tuple[Path, fedpm.Result]) -> None:
    held = json.loads((small_run[0] / "clients.json").read_text())
    assert len(held["classes"]) == 10
    assert held["clients"] == len(held["counts"]) == 4
    assert sum(map(sum, held["counts"])) == 270  # 300 examples without the tenth to validate on


def test_dense_algorithms_have_no_theta(data: Dataset) -> None:
    result = fedpm.run(small_config(algorithm="fedavg", rounds=1), net=small_net(), data=data)
    assert "theta_histogram" not in result.rounds[0]
    assert "kept" not in result.summary["layers"][0]


def test_tensorboard_events_read_back_also_after_a_resume(data: Dataset, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "run"

    def stop(round: fedpm.Round) -> None:
        if round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedpm.run(small_config(tensorboard=True), net=small_net(), data=data, out=out, on_round=stop)
    result = fedpm.resume(out, net=small_net(), data=data)
    events = accumulator.EventAccumulator(str(out / "tensorboard"), size_guidance={"histograms": 0}).Reload()
    for key in ("accuracy", "uplink_bpp", "train_loss"):
        seen = [(event.step, event.value) for event in events.Scalars(key)]
        assert seen == [(r["round"], pytest.approx(r[key], rel=1e-6)) for r in result.rounds]
    names = [f"theta/{layer['name']}" for layer in result.summary["layers"]]
    assert [tag for tag in events.Tags()["scalars"] if tag.startswith("theta/")] == names
    for place, name in enumerate(names):
        means = [event.value for event in events.Scalars(name)]
        assert means == [pytest.approx(r["theta_layers"][place], rel=1e-6) for r in result.rounds]
    for event, record in zip(events.Histograms("theta"), result.rounds, strict=True):
        assert event.step == record["round"]
        assert [int(count) for count in event.histogram_value.bucket] == record["theta_histogram"]
    assert RunFolder(out).records() == result.rounds


def test_clients_that_are_left_out_for_one_reason_are_told_in_one_line() -> None:
    record: Any = {"round": 3, "clients": [0, 1, 7], "names": ["oslo", "bergen", "bodø"]}
    record["rejected"] = {"0": "too late", "1": "not a mask", "7": "too late"}
    assert complaints(record) == [
        "round 3: left out the uploads of clients oslo, bodø: too late",
        "round 3: left out the upload of client bergen: not a mask",
    ]
    record = {"round": 3, "clients": [], "rejected": {str(client): "too late" for client in range(12)}}
    assert complaints(record)[0].endswith(" 8, 9 and 2 more: too late")


def test_every_field_is_in_the_documentation_and_none_is_written_beyond_it(
    small_run: tuple[Path, fedpm.Result],
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    rounds, summary = text.split("## A run")
    for part, fields in ((rounds, RoundRecord.__annotations__), (summary, Summary.__annotations__)):
        assert set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE)) == set(fields)
    assert RoundRecord.__required_keys__ <= set(small_run[1].rounds[0]) <= set(RoundRecord.__annotations__)
    assert Summary.__required_keys__ <= set(small_run[1].summary) <= set(Summary.__annotations__)
