"""A run in its caller's hand: settings by keyword, callbacks that see the model and stop, patience, the best round."""

import itertools
import os
import pty
import re
import sys
import tomllib
import warnings
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from torch import nn

import fedpm
from fedpm.config import Config
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Clients, Task
from fedpm.engines.inprocess import Sequential
from fedpm.errors import ConfigError
from fedpm.experiment import progress
from fedpm.experiment.progress import Announced, round_progress
from fedpm.experiment.record import RoundRecord, best_round, rounds_without_gain
from tests.drills import short_config
from tests.engines.misbehaving import Misbehaving
from tests.experiment.test_loop import no_engine, without_times
from tests.small import small_config, small_net

TINY: dict[str, Any] = {"rounds": 1, "workers": 1, "clients": {"total": 2}, "local": {"epochs": 1}}


def score(record: RoundRecord) -> float:
    return record["validation_accuracy"][record["mode"]]


def varied(algorithm: str = "fedpm", **settings: Any) -> Config:
    """Return settings of a short run whose validation score goes up and down."""
    return fedpm.load_config(short_config(30), {"seed": 1, "algorithm": algorithm, "local.epochs": 2, **settings})


class Fall:
    """Stops a run at the first round that scores worse than the one before."""

    def __init__(self) -> None:
        self.before = 0.0

    def __call__(self, round: fedpm.Round) -> None:
        if score(round.record) < self.before:
            round.stop()
        self.before = score(round.record)


Fallen = tuple[Path, fedpm.Result]


@pytest.fixture(scope="module")
def fallen(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Fallen:
    """A run that keeps its best round, which is not its last."""
    out = tmp_path_factory.mktemp("fallen") / "run"
    result = fedpm.run(varied(keep="best"), net=small_net(), data=data, out=out, on_round=Fall())
    assert result.summary["ended"] == "callback"
    return out, result


# -- settings ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_settings_are_given_in_any_form(data: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("rounds = 9\nworkers = 1\nclients.total = 2\nlocal.epochs = 1\n")
    flat = {"rounds": 9, "workers": 1, "clients.total": 2, "local": MappingProxyType({"epochs": 1})}
    texts = set()
    bases: list[Any] = [file, str(file), flat, fedpm.load_config(flat)]
    for number, base in enumerate(bases):
        out = tmp_path / str(number)
        fedpm.run(base, net=small_net(), data=data, out=out, rounds=1, local={"batch_size": 64})
        texts.add((out / "config.toml").read_text())
    (text,) = texts
    settled = tomllib.loads(text)
    assert (settled["rounds"], settled["clients"]["total"]) == (1, 2)
    assert (settled["local"]["epochs"], settled["local"]["batch_size"]) == (1, 64)


def test_a_table_given_by_keyword_changes_only_its_keys() -> None:
    quick = fedpm.load_config("quickstart")
    changed = fedpm.load_config(quick, {"local": {"batch_size": 9}})
    assert (changed.local.batch_size, changed.local.epochs) == (9, quick.local.epochs)
    assert fedpm.load_config(quick) is quick


@pytest.mark.slow
def test_the_table_of_data_is_settings_too(tmp_path: Path) -> None:
    small = {"train_examples": 60, "test_examples": 20}
    fedpm.run("quickstart", data=small, model={"name": "conv4-slim"}, out=tmp_path, **TINY)
    assert tomllib.loads((tmp_path / "config.toml").read_text())["data"]["train_examples"] == 60


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"round": 5}, "round = 5: unknown key; did you mean rounds?"),
        ({"epochs": 2}, "epochs = 2: unknown key; did you mean local.epochs?"),
        ({"lr": 0.1}, "lr = 0.1: unknown key; did you mean local.lr?"),
        ({"local": {"epoch": 2}}, "local.epoch = 2: unknown key; did you mean local.epochs?"),
        ({"stop": {"patience": 0}}, "stop.patience = 0: should be greater than 0"),
        ({"keep": "first"}, "keep = 'first': should be 'last' or 'best'"),
        ({"config": "quickstrat"}, "quickstrat: there is no such preset; did you mean quickstart?"),
        ({"config": "missing.toml"}, "missing.toml: there is no such file or folder"),
        ({"rounds": {"x": 1}, "config": {"rounds": 2}}, "rounds.x = 1: rounds is a single value"),
    ],
)
def test_an_unknown_keyword_is_explained_like_an_unknown_key(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        fedpm.run(**given)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": (1, 2)}, "data: a tuple is no data set; give fedpm.dataset(train=…, test=…), or each client's own"),
        ({"data": {"oslo": ([[1.0]], [0])}}, "data: a mapping holds settings of the table data; give data as"),
        ({"net": "conv4"}, "net: a str is no network; give an nn.Module, or name one that is built in: model.name"),
        ({"net": nn.Linear}, "net: Linear is a class; give a network of it: Linear(…)"),
        ({"on_round": 3}, "on_round = 3: should be a function of a round"),
        ({"model": {"name": "conv4"}}, "model.name = 'conv4': net=… is given too, and one of both is used; leave out"),
        ({"data.name": "mnist"}, "data.name = 'mnist': data=… is given too, and one of both is used; leave out"),
        ({"trained": "net.6"}, "frozen, trained or masked names net.6: the network has no such parameter or module"),
        ({"masked": 3}, "frozen, trained or masked names 3: should be a name, a pattern or a class of modules"),
        ({"frozen": [3]}, "frozen, trained or masked names 3: should be a name, a pattern or a class of modules"),
    ],
)
def test_what_is_of_the_wrong_kind_is_one_sentence(given: dict[str, Any], sentence: str, data: Dataset) -> None:
    usual: dict[str, Any] = {"net": small_net(), "data": data}
    with pytest.raises(fedpm.FedPMError, match=re.escape(sentence)):
        fedpm.run(small_config(), **usual | given)


def test_a_network_in_the_place_of_settings_is_told_on_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^model = Sequential\(.*…: is a table, of keys and values.*$") as error:
        fedpm.run(model=small_net())
    assert len(str(error.value).splitlines()) == 1


# -- callbacks --------------------------------------------------------------------------------------------


def test_a_callback_sees_the_record_and_the_model_of_its_round(data: Dataset) -> None:
    seen: list[fedpm.Round] = []
    x, y = torch.from_numpy(data.test.x), torch.from_numpy(data.test.y)

    def look(round: fedpm.Round) -> None:
        model = round.model()
        assert not model.training
        assert float((model(x).argmax(1) == y).float().mean()) == pytest.approx(round.record["accuracy"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # a copy: training goes on undisturbed
        seen.append(round)

    result = fedpm.run(short_config(3), net=small_net(), data=data, on_round=look)
    assert [round.record for round in seen] == result.rounds
    assert dict(seen[1]) == result.rounds[1]
    assert (seen[1]["round"], "epsilon" in seen[1], len(seen[1])) == (2, False, len(result.rounds[1]))
    assert torch.equal(seen[-1].model()(x), result.model(x))
    assert result.file.to_bytes() == fedpm.run(short_config(3), net=small_net(), data=data).file.to_bytes()


def test_a_run_that_was_stopped_ends_there_and_can_go_on(data: Dataset, tmp_path: Path) -> None:
    def stop(round: fedpm.Round) -> None:
        if round.record["round"] == 1:
            round.stop()

    parts, whole = tmp_path / "parts", tmp_path / "whole"
    stopped = fedpm.run(short_config(), net=small_net(), data=data, out=parts, on_round=stop)
    assert (stopped.summary["ended"], stopped.summary["rounds"]) == ("callback", 1)
    assert stopped.summary["accuracy"] == stopped.rounds[0]["accuracy"]
    assert (parts / "model.fedpm").read_bytes() == stopped.file.to_bytes()
    resumed = fedpm.resume(parts, net=small_net(), data=data)
    straight = fedpm.run(short_config(), net=small_net(), data=data, out=whole)
    assert resumed.file.to_bytes() == straight.file.to_bytes()
    assert without_times(parts) == without_times(whole)
    assert resumed.summary["ended"] == "rounds"


def test_raising_in_a_callback_leaves_the_last_model_and_what_can_be_resumed(data: Dataset, tmp_path: Path) -> None:
    models = []

    def fail(round: fedpm.Round) -> None:
        models.append(round.model())
        if round.record["round"] == 2:
            raise RuntimeError("a fault of the callback's own")

    with pytest.raises(RuntimeError, match="a fault of the callback's own"):
        fedpm.run(short_config(3), net=small_net(), data=data, out=tmp_path, on_round=fail)
    x = torch.from_numpy(data.test.x)
    assert torch.equal(fedpm.load(tmp_path, net=small_net())(x), models[1](x))
    assert not (tmp_path / "summary.json").exists(), "it is not finished"
    assert len(fedpm.resume(tmp_path, net=small_net(), data=data).rounds) == 3


# -- the best round, and patience -------------------------------------------------------------------------


def test_the_best_round_is_shipped(fallen: Fallen, data: Dataset) -> None:
    out, result = fallen
    best = best_round(result.rounds)
    assert score(best) == max(map(score, result.rounds))
    assert best["round"] == result.summary["round"] < result.summary["rounds"] == len(result.rounds)
    for key in ("accuracy", "loss", "mode", "validation_accuracy"):
        assert result.summary[key] == best[key]
    cut = fedpm.run(varied(rounds=best["round"]), net=small_net(), data=data)  # which ends there
    assert isinstance(result.file, fedpm.Model)
    assert isinstance(cut.file, fedpm.Model)
    assert result.file.coded_mask == cut.file.coded_mask
    assert result.file.header.provenance["round"] == best["round"]
    assert (out / "model.fedpm").read_bytes() == result.file.to_bytes()


def test_of_equally_good_rounds_the_last_is_shipped_and_patience_counts_from_the_first() -> None:
    records: list[Any] = [
        {"round": number, "mode": "a", "validation_accuracy": {"a": score, "b": 9.0}}
        for number, score in enumerate((0.1, 0.5, 0.5, 0.4), 1)
    ]
    assert best_round(records)["round"] == 3
    assert rounds_without_gain(records) == 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_a_run_that_keeps_its_best_round_resumes_to_the_same_bytes(
    algorithm: str, data: Dataset, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    whole = fedpm.run(varied(algorithm, keep="best"), out=tmp_path / "whole", on_round=Fall(), **given)
    config = varied(algorithm, keep="best", rounds=len(whole.rounds) + 1)
    straight = fedpm.run(config, out=tmp_path / "straight", **given)

    def cut(round: fedpm.Round) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        fedpm.run(config, out=out, on_round=cut, **given)
    for _ in range(config.rounds - 1):  # killed after every round
        with pytest.raises(KeyboardInterrupt):
            fedpm.resume(out, on_round=cut, **given)
    resumed = fedpm.resume(out, start=no_engine, **given)
    assert resumed.file.to_bytes() == straight.file.to_bytes()
    assert resumed.summary["round"] == best_round(straight.rounds)["round"]
    assert without_times(out) == without_times(tmp_path / "straight")


def test_the_best_state_is_in_the_checkpoint_under_its_checksum(fallen: Fallen, data: Dataset, tmp_path: Path) -> None:
    with safe_open(fallen[0] / "checkpoint" / "state.safetensors", "np") as file:
        names = set(file.keys())
        now, best = file.get_tensor("mask_state"), file.get_tensor("best/mask_state")
    assert (best[0], now[0]) == (fallen[1].summary["round"], fallen[1].summary["rounds"])
    assert {name for name in names if name.startswith("best/")} == {f"best/{n}" for n in names if "best/" not in n}
    fedpm.run(varied(rounds=1, keep="best"), net=small_net(), data=data, out=tmp_path)
    with safe_open(tmp_path / "checkpoint" / "state.safetensors", "np") as file:
        assert not any(name.startswith("best/") for name in file.keys())  # noqa: SIM118  # it is the last


@pytest.mark.slow
def test_training_ends_when_patience_does(data: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    result = fedpm.run(varied(), stop={"patience": 1}, keep="best", out=tmp_path, **given)
    *better, last = map(score, result.rounds)
    assert better == sorted(set(better)), "it goes on while each round is better than all before"
    assert last <= better[-1]
    done = len(result.rounds)
    assert (result.summary["ended"], result.summary["round"]) == ("patience", done - (last < better[-1]))
    again = fedpm.resume(tmp_path, rounds=31, start=no_engine, **given)
    assert again.summary["ended"] == "patience", "more rounds do not give it more patience"
    longer = fedpm.resume(tmp_path, rounds=done + 1, stop={"patience": None}, **given)
    assert (longer.summary["ended"], longer.summary["rounds"]) == ("rounds", done + 1)


# -- going on longer --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_longer_as_if_it_had_been_meant_to(data: Dataset, tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    given: dict[str, Any] = {"net": small_net(), "data": data}
    fedpm.run(short_config(), out=parts, **given)

    def look(round: fedpm.Round) -> None:
        assert not (parts / "summary.json").exists(), "a run that goes on is not finished"
        assert tomllib.loads((parts / "config.toml").read_text())["rounds"] == 4

    resumed = fedpm.resume(parts, rounds=4, on_round=look, **given)
    straight = fedpm.run(short_config(4), out=whole, **given)
    assert resumed.file.to_bytes() == straight.file.to_bytes()
    assert without_times(parts) == without_times(whole)
    assert (parts / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": 1}, r"^rounds = 1: this run has done 2 already; give at least 2$"),
        ({"local": {"epochs": 9}, "seed": 3}, r"^seed, local\.epochs: a run goes on with the settings it began with"),
        ({"keep": "best"}, r"^keep: a run goes on with the settings it began with"),
        ({"round": 9}, r"^round = 9: unknown key; did you mean rounds\?$"),
    ],
)
def test_what_would_be_another_run_is_refused(
    settings: dict[str, Any], sentence: str, data: Dataset, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    fedpm.run(short_config(), out=tmp_path, **given)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=sentence):
        fedpm.resume(tmp_path, **settings, **given)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_settings_that_change_no_result_may_be_others(data: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    before = fedpm.run(short_config(), out=tmp_path, **given)
    after = fedpm.resume(tmp_path, workers=2, seed=0, start=no_engine, **given)
    assert after.file.to_bytes() == before.file.to_bytes()


# -- progress ---------------------------------------------------------------------------------------------


def test_progress_shows_on_a_terminal_unless_it_is_switched_off(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def screen(**how: Any) -> str:
        main, terminal = pty.openpty()
        with open(terminal, "w") as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            patch.setenv("COLUMNS", "120")
            fedpm.run(short_config(), net=small_net(), data=data, **how)
            stdout.write("end")
            stdout.flush()
            shown = os.read(main, 100_000)
        os.close(main)
        return shown.decode()

    assert "2/2" in screen()
    assert screen(progress=False) == "end"


def test_progress_is_silent_in_a_pipe_unless_it_is_wanted(
    data: Dataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    fedpm.run(short_config(), **given)
    assert capsys.readouterr().out == ""
    fedpm.run(short_config(), progress=True, **given)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20] for line in lines[-2:]] == ["round 1/2  accuracy ", "round 2/2  accuracy "]
    assert "a round takes about" not in "".join(lines)
    monkeypatch.setattr(progress, "LONG", 0.0)
    fedpm.run(short_config(), progress=True, **given)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "a round takes about" in line] == ["round 1"]


def test_a_notebook_without_widgets_gets_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    record: Any = {
        "clients": [],
        "round": 7, "accuracy": 0.97, "uplink_bpp": 0.1, "downlink_bpp": 0.9, "rejected": {}, "seconds": 1.0,
    }  # fmt: skip
    with round_progress(20, console=Console(force_jupyter=True)) as show:
        show(record)
    assert capsys.readouterr().out.startswith("round 7/20  accuracy 0.970")


@pytest.mark.parametrize(
    ("seconds", "workers", "lines"),
    [
        (44.0, 2, ["round 1: 1 of 10 clients in 44 s; a round takes about 4 minutes"]),
        (4.0, 1, ["round 1: 1 of 10 clients in 4 s; a round takes about 40 s"]),
        (4.0, 2, []),
    ],
)
def test_a_long_round_is_told_after_its_first_client_and_once(
    seconds: float, workers: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count(0.0, seconds)
    engine = Announced(Sequential(cast(Clients, Misbehaving())), workers, lambda: next(ticks))
    for round in (1, 2):
        assert len(list(engine.run(round, [Task(client, b"") for client in range(10)]))) == 10
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(("algorithm", "kind"), [("fedpm", "masked"), ("fedavg", "weights")])
def test_the_start_says_which_parameters_are_of_which_kind(
    algorithm: str, kind: str, data: Dataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10, bias=False))
    given: dict[str, Any] = {"net": net, "data": data, "frozen": ["3"], "progress": True}
    fedpm.run(small_config(rounds=1, algorithm=algorithm), out=tmp_path / "run", **given)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:4]] == [
        ["kind", "tensors", "parameters"], [kind, "2", "520"], ["trained", "2", "16"], ["frozen", "1", "80"],
    ]  # fmt: skip
    assert f"{kind} tensors start at random; if it is pretrained, weights='given' keeps its values" in lines[4]
    fedpm.resume(tmp_path / "run", rounds=2, **given)
    assert "tensors" not in capsys.readouterr().out, "it has been said"


def test_where_nobody_sees_the_start_a_warning_says_that_weights_are_replaced(data: Dataset) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data}
    with torch.no_grad():
        given["net"][1].weight *= 2  # beyond where torch starts a layer: somebody has trained it
    with pytest.warns(UserWarning, match=r"masked tensors start at random; .* weights='given' keeps") as said:
        fedpm.run(small_config(rounds=1), **given)
    assert [one.filename for one in said] == [__file__], "it points at the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for weights in ("given", "random"):  # who says it knows it
            fedpm.run(small_config(rounds=1), weights=weights, **given)
        fedpm.run(small_config(rounds=1), progress=True, **given)
        fedpm.run(small_config(rounds=1), net=small_net(), data=data)  # nothing is lost


def test_a_result_tells_in_a_line_what_it_is(small_run: tuple[Path, fedpm.Result]) -> None:
    told, file = repr(small_run[1]), repr(small_run[1].file)
    assert re.fullmatch(r"<fedpm.Result: accuracy 0\.\d+ after 3 rounds, .+ up, .+ down, model .+; see .+>", told)
    assert file == "<fedpm.Model: your own network, 2,410 parameters, seed 0>"


def test_an_interrupt_says_how_to_go_on(data: Dataset, tmp_path: Path) -> None:
    def stop(round: fedpm.Round) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        fedpm.run(small_config(), net=small_net(), data=data, out=tmp_path / "run", on_round=stop)
    assert "fedpm.resume(" in stopped.value.__notes__[0]
    with pytest.raises(ConfigError, match=r"for a new run, fedpm\.resume\(folder, data=…\) to go on"):
        fedpm.resume(tmp_path / "run", net=small_net())
    assert len(fedpm.resume(tmp_path / "run", net=small_net(), data=data).rounds) == 3


def test_a_bar_of_a_resumed_run_begins_where_the_run_does() -> None:
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, record=True, width=120)
        with round_progress(20, done=5, wanted=True, console=console):
            pass
    assert "5/20" in console.export_text()
