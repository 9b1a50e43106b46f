"""What MLflow and Weights & Biases are told, read back from their own files (TensorBoard's: test_record.py)."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError
from tests.drills import short_config
from tests.small import small_net

FIGURES = ("accuracy", "train_loss", "uplink_bpp", "downlink_bytes")
BLOCK = 32768


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not here: pip install 'fedpm[{package}]'"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def cut_and_resumed(out: Path, data: Dataset, **settings: Any) -> fedpm.Result:
    """Return a run of three rounds that broke off after two."""

    def cut(round: fedpm.Round) -> None:
        if round["round"] == 2:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"net": small_net(), "data": data}
    with pytest.raises(KeyboardInterrupt):
        fedpm.run(short_config(3), out=out, on_round=cut, **settings, **given)
    return fedpm.resume(out, **given)


@pytest.fixture
def forgetful_wandb() -> Iterator[None]:
    """Let it read its environment anew afterwards, which it does once a process."""
    yield
    import_module("wandb").teardown()


@needs("mlflow")
@pytest.mark.slow
def test_mlflow_holds_settings_and_figures_of_one_run_also_after_a_resume(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = cut_and_resumed(tmp_path / "run", data, mlflow=True)
    client = import_module("mlflow").MlflowClient(tracking_uri=(tmp_path / "run" / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("fedpm")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["local.epochs"] == "1"
    names = [*FIGURES, "validation_accuracy/sampled", "theta/1.weight"]
    for name in names:
        seen = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert seen == [(record["round"], pytest.approx(figure(record, name))) for record in result.rounds]


@needs("mlflow")
@pytest.mark.slow
def test_mlflow_writes_where_its_tracking_uri_says(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def fail(round: fedpm.Round) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fedpm.run(short_config(), net=small_net(), data=data, out=tmp_path / "run", mlflow=True, on_round=fail)
    client = import_module("mlflow").MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("fedpm").experiment_id])
    assert run.info.status == "FAILED"


@needs("mlflow")
@pytest.mark.slow
def test_a_store_that_mlflow_refuses_is_one_sentence(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://store")
    with pytest.raises(ConfigError, match=r"^mlflow = true: .*; check MLFLOW_TRACKING_URI$"):
        fedpm.run(short_config(), net=small_net(), data=data, out=tmp_path / "run", mlflow=True)


@needs("wandb")
@pytest.mark.slow
@pytest.mark.usefixtures("forgetful_wandb")
def test_wandb_without_an_account_is_one_sentence(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "not a key")
    with pytest.raises(ConfigError, match=r"^wandb = true: .*; or keep the run here, with WANDB_MODE=offline$"):
        fedpm.run(short_config(), net=small_net(), data=data, out=tmp_path / "run", wandb=True)


@needs("wandb")
@pytest.mark.slow
@pytest.mark.usefixtures("forgetful_wandb")
def test_wandb_holds_settings_and_figures_of_one_run_also_after_a_resume(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = cut_and_resumed(tmp_path / "run", data, wandb=True)
    files = sorted(
        (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime
    )
    logs = [list(wandb_records(file.read_bytes())) for file in files]
    runs = [record.run for log in logs for record in log if record.HasField("run")]
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("fedpm", "run")}
    settings = {update.key: json.loads(update.value_json) for update in runs[0].config.update}
    assert settings["local.epochs"] == 1
    rounds = [figures(record.history) for log in logs for record in log if record.HasField("history")]
    assert [told["_step"] for told in rounds] == [1, 2, 3]
    for told, record in zip(rounds, result.rounds, strict=True):
        for name in (*FIGURES, "validation_accuracy/sampled", "theta/1.weight"):
            assert told[name] == pytest.approx(figure(record, name))
    ends = [record.exit.exit_code for log in logs for record in log if record.HasField("exit")]
    assert ends == [1, 0]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_that_is_not_here_names_its_extra(
    name: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    given: dict[str, Any] = {"net": small_net(), "data": data, name: True}
    with pytest.raises(ConfigError, match=rf"^{name} = true needs {name}: pip install 'fedpm\[{name}\]', in a clone"):
        fedpm.run(short_config(), out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", pytest.param("mlflow", marks=needs("mlflow"))])
def test_a_logger_needs_a_folder(name: str, data: Dataset) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data, name: True}
    with pytest.raises(ConfigError, match=rf"^{name} = true writes into the run folder: give one"):
        fedpm.run(short_config(), **given)


def figure(record: Any, name: str) -> float:
    """Return a figure of a record by the name under which loggers show it."""
    table, _, entry = name.partition("/")
    if table == "theta":
        return float(record["theta_layers"][0])
    return float(record[table][entry] if entry else record[table])


def figures(history: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item}


def wandb_records(log: bytes) -> Iterator[Any]:
    """Yield the messages of an offline run's file: 7 bytes, then pieces in blocks, as in a log of LevelDB.

    Before each piece stand a checksum (4 bytes), its length (2), and its kind (1): 1 is whole, 4 the last of several.
    """
    messages = import_module("wandb.proto.wandb_internal_pb2")
    place, text = 7, b""
    while place + 7 <= len(log):
        if (left := BLOCK - place % BLOCK) < 7:
            place += left
            continue
        length, kind = int.from_bytes(log[place + 4 : place + 6], "little"), log[place + 6]
        text += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(text)
            yield record
            text = b""
