import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.config import Config, load
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Clients, Engine, Fault, Reply, Task
from fedpm.engines.inprocess import Sequential
from fedpm.errors import ArtifactError, ConfigError, DataError, EngineError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.round import Exchange
from fedpm.methods.base import ClientResult
from fedpm.methods.mask.downlink import Form
from tests.small import small_config, small_net


def without_times(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.slow
def test_a_run_learns(data: Dataset) -> None:
    config = small_config(rounds=8, local={"epochs": 8}, data={})
    result = fedpm.run(config, net=small_net(), data=data)
    assert result.summary["accuracy"] > 0.8
    assert result.rounds[0]["accuracy"] < result.summary["accuracy"]


def test_run_folder_holds_what_the_design_promises(small_run: tuple[Path, fedpm.Result]) -> None:
    folder, result = small_run
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml", "rounds.jsonl", "clients.json", "summary.json", "model.fedpm", "checkpoint",
    }  # fmt: skip
    records = RunFolder(folder).records()
    assert records == result.rounds
    assert [record["round"] for record in records] == [1, 2, 3]
    assert set(records[0]) >= {
        "clients", "accuracy", "loss", "uplink_bytes", "downlink_bytes", "uplink_bpp", "downlink_bpp",
        "uplink_ideal_bpp", "uplink_paper_bpp", "uplink_kl_bpp", "downlink_ideal_bpp", "seconds",
    }  # fmt: skip
    assert json.loads((folder / "summary.json").read_text()) == result.summary
    config = load(RunFolder(folder).config_file)
    assert config.device == "cpu"
    assert config.precision in ("float32", "bfloat16")


class Tapped(Sequential):
    """An engine that notes what passes in a round, in all its stages."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.tasks: list[Sequence[Task]] = []
        self.down: list[int] = []
        self.up: list[int] = []

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        self.tasks.append(tasks)
        if not tasks[0].stage:
            self.down.append(0)
            self.up.append(0)
        self.down[-1] += sum(len(task.broadcast) for task in tasks)
        for reply in super().run(round, tasks):
            assert isinstance(reply.answer, ClientResult)
            self.up[-1] += len(reply.answer.payload)
            yield reply


def tapped_run(config: Config, data: Dataset) -> tuple[fedpm.Result, Tapped]:
    """Run with an engine that notes what passes, and return both."""
    engines: list[Tapped] = []

    def start(experiment: Experiment) -> Tapped:
        engines.append(Tapped(experiment.clients))
        return engines[0]

    return fedpm.run(config, net=small_net(), data=data, start=start), engines[0]


def test_reported_traffic_is_the_length_of_what_was_sent(data: Dataset) -> None:
    result, tapped = tapped_run(small_config(clients={"total": 4, "sampled": 3}), data)
    assert [record["uplink_bytes"] for record in result.rounds] == tapped.up
    assert [record["downlink_bytes"] for record in result.rounds] == tapped.down
    first = result.rounds[0]
    assert first["uplink_bpp"] == pytest.approx(8 * first["uplink_bytes"] / (3 * result.summary["parameters"]))


def test_clients_that_hold_a_broadcast_get_what_was_added_since(data: Dataset) -> None:
    result, tapped = tapped_run(small_config(rounds=6, clients={"total": 4, "sampled": 2}), data)
    met, forms = set[int](), set[Form]()
    for record, tasks in zip(result.rounds, tapped.tasks, strict=True):
        for task in tasks:
            form = Form(task.broadcast[6])
            assert (form in (Form.SEED, Form.COUNTS)) == (task.client not in met)
            forms.add(form)
        met |= set(record["clients"])
    assert forms == {Form.SEED, Form.COUNTS, Form.RELAYED, Form.STEPS}


@pytest.mark.parametrize("codec", ["frequency", "side-information"])
def test_the_coder_changes_no_mask(codec: str, small_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    other = fedpm.run(small_config(codec=codec), net=small_net(), data=data)
    assert other.file.coded_mask == small_run[1].file.coded_mask
    for record, shared in zip(other.rounds, small_run[1].rounds, strict=True):
        assert record["accuracy"] == shared["accuracy"]
        assert record["uplink_paper_bpp"] == shared["uplink_paper_bpp"]
        assert record["uplink_bytes"] > shared["uplink_bytes"]
        least, ideal = shared["uplink_kl_bpp"], shared["uplink_ideal_bpp"]
        assert least is not None
        assert ideal is not None
        assert least < ideal < shared["uplink_bpp"]


def test_a_damaged_upload_is_left_out_and_counted(data: Dataset) -> None:
    experiment = build(small_config(), net=small_net(), data=data)
    method, state = experiment.method, experiment.method.init()
    broadcast = method.broadcast(state).payload
    replies = list(Sequential(experiment.clients).run(1, [Task(client, broadcast) for client in range(3)]))
    assert isinstance(replies[1].answer, ClientResult)
    damaged = replace(replies[1], answer=ClientResult(replies[1].answer.payload[:-1] + b"x"))
    exchange = Exchange([0, 1, 2])
    kept = list(exchange.accepted(method, state, iter([replies[0], damaged, replies[2]])))
    assert len(kept) == 2
    assert list(exchange.rejected) == ["1"]
    assert "checksum" in exchange.rejected["1"]


def test_traffic_counts_what_passed_whether_or_not_it_could_be_used(data: Dataset) -> None:
    experiment = build(small_config(), net=small_net(), data=data)
    method, state = experiment.method, experiment.method.init()
    broadcast = method.broadcast(state).payload
    (good,) = Sequential(experiment.clients).run(1, [Task(0, broadcast)])
    replies = [
        good,
        Reply(1, Fault("absent", "not connected"), sent=0, received=0),
        Reply(2, Fault("silent", "no answer"), sent=len(broadcast), received=0),
        Reply(3, Fault("late", "of the round before"), sent=0, received=500),
    ]
    exchange = Exchange([0, 1, 2, 3])
    assert len(list(exchange.accepted(method, state, iter(replies)))) == 1
    traffic = exchange.traffic(size=1000)
    assert traffic["uplink_bytes"] == good.received + 500
    assert traffic["uplink_bpp"] == pytest.approx(8 * (good.received + 500) / 2 / 1000)  # two uploads arrived
    assert traffic["downlink_bytes"] == 2 * len(broadcast)
    assert traffic["downlink_bpp"] == pytest.approx(8 * len(broadcast) / 1000)  # two broadcasts left
    assert traffic["faults"] == {"absent": 1, "silent": 1, "late": 1}


def test_the_same_config_gives_the_same_bytes(
    small_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    folder, result = small_run
    torch.rand(5)  # the program's own draws change nothing
    again = fedpm.run(small_config(), net=small_net(), data=data, out=tmp_path / "again")
    assert again.file.to_bytes() == result.file.to_bytes()
    assert without_times(tmp_path / "again") == without_times(folder)


def test_another_seed_gives_another_model(small_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    other = fedpm.run(small_config(seed=1), net=small_net(), data=data)
    assert other.file.coded_mask != small_run[1].file.coded_mask


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_an_interrupted_run_resumes_to_the_same_bytes(
    small_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path, stop_after: int
) -> None:
    out = tmp_path / "run"

    def stop(round: fedpm.Round) -> None:
        if round["round"] == stop_after:
            raise KeyboardInterrupt

    if stop_after == 0:
        RunFolder.create(out, build(small_config(), net=small_net(), data=data).config_toml).close()
    else:
        with pytest.raises(KeyboardInterrupt):
            fedpm.run(small_config(), net=small_net(), data=data, out=out, on_round=stop)
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 99, "torn')  # killed between the log and the checkpoint, in the middle of a line
    result = fedpm.resume(out, net=small_net(), data=data)
    assert result.file.to_bytes() == small_run[1].file.to_bytes()
    assert (out / "model.fedpm").read_bytes() == result.file.to_bytes()
    assert without_times(out) == without_times(small_run[0])


def no_engine(experiment: Experiment) -> Engine:
    raise AssertionError("there was nothing to run")


def test_resuming_a_finished_run_changes_and_starts_nothing(data: Dataset, tmp_path: Path) -> None:
    fedpm.run(small_config(rounds=1), net=small_net(), data=data, out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    fedpm.resume(tmp_path, net=small_net(), data=data, start=no_engine)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_results_are_never_overwritten(small_run: tuple[Path, fedpm.Result], data: Dataset) -> None:
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        fedpm.run(small_config(), net=small_net(), data=data, out=small_run[0])
    file = small_run[0] / "config.toml"
    with pytest.raises(
        ArtifactError, match=r"config.toml is a file: choose another folder with --out \(out= in Python\)$"
    ):
        fedpm.run(small_config(), net=small_net(), data=data, out=file)


def test_resume_refuses_what_does_not_belong(tmp_path: Path, data: Dataset) -> None:
    with pytest.raises(ArtifactError, match="not a run folder"):
        fedpm.resume(tmp_path)
    out = tmp_path / "run"
    fedpm.run(small_config(rounds=1), net=small_net(), data=data, out=out)
    with pytest.raises(ConfigError, match=r"data\.name = 'own'.*\n.*model\.name = 'own'"):
        fedpm.resume(out)
    other_net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    others = fedpm.dataset(*((part.x[:300], part.y[:300]) for part in (data.train, data.test)))
    for net, given, what in (
        (other_net, data, "another network"),
        (small_net(), others, "other data"),
        (other_net, others, "another network and other data"),
    ):
        with pytest.raises(ArtifactError, match=f"this run was started with {what}: give what it began with, or start"):
            fedpm.resume(out, net=net, data=given)
    wide = fedpm.dataset(*((np.zeros((300, 9), np.float32), part.y[:300]) for part in (data.train, data.test)))
    with pytest.raises(ArtifactError, match=r"other data; give those \(the network cannot take an input of your data"):
        fedpm.resume(out, net=small_net(), data=wide)
    state = out / "checkpoint" / "state.safetensors"
    with RunFolder.open(out) as folder:
        origin = build(small_config(rounds=1), net=small_net(), data=data).origin()
        folder.load_state(origin)
        origin = replace(origin, round=1)
        folder.save_state({"ones": np.zeros(3, np.uint32)}, origin)
    with pytest.raises(ArtifactError, match="of another version of fedpm or of another method"):
        fedpm.resume(out, net=small_net(), data=data)
    state.write_bytes(state.read_bytes()[:60])
    anew = "restore it from a copy, or start anew in another folder"
    with pytest.raises(ArtifactError, match=rf"checkpoint cannot be read \(.*\); {anew}"):
        fedpm.resume(out, net=small_net(), data=data)


def test_a_run_whose_checkpoint_is_gone_is_not_begun_again_over_its_records(
    small_run: tuple[Path, fedpm.Result], data: Dataset, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(small_run[0], tmp_path / "run"))
    log = (out / "rounds.jsonl").read_bytes()
    shutil.rmtree(out / "checkpoint")
    for _ in range(2):  # the folder is there the second time
        with pytest.raises(ArtifactError, match=r"the checkpoint is gone, .*; restore it from a copy, or start anew"):
            fedpm.resume(out, net=small_net(), data=data)
    assert (out / "rounds.jsonl").read_bytes() == log


def test_a_folder_in_use_is_refused(data: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedpm.run(small_config(rounds=1), net=small_net(), data=data, out=out)
    with RunFolder.open(out), pytest.raises(ArtifactError, match="in use by another process"):
        fedpm.resume(out, net=small_net(), data=data)


def test_a_run_that_failed_leaves_no_lock_while_its_exception_lives(data: Dataset, tmp_path: Path) -> None:
    def fail(round: fedpm.Round) -> None:
        raise RuntimeError("as in a notebook, which keeps the exception and all its frames")

    with pytest.raises(RuntimeError) as kept:
        fedpm.run(small_config(), net=small_net(), data=data, out=tmp_path / "run", on_round=fail)
    assert len(fedpm.resume(tmp_path / "run", net=small_net(), data=data).rounds) == 3
    assert kept.value.__traceback__ is not None


def test_test_data_is_never_chosen_on(data: Dataset) -> None:
    shuffled = fedpm.dataset((data.train.x, data.train.y), (data.test.x, np.roll(data.test.y, 7)), classes=data.classes)
    one = fedpm.run(small_config(), net=small_net(), data=data)
    two = fedpm.run(small_config(), net=small_net(), data=shuffled)
    assert one.file.coded_mask == two.file.coded_mask
    assert [r["mode"] for r in one.rounds] == [r["mode"] for r in two.rounds]
    assert one.summary["accuracy"] != two.summary["accuracy"]


def test_validation_examples_are_not_trained_on(data: Dataset) -> None:
    experiment = build(small_config(data={}), net=small_net(), data=data)
    train, validation = experiment.clients.train, experiment.validation
    assert len(train) + len(validation) == len(data.train)
    assert len(validation) == round(0.1 * len(data.train))
    everything = np.sort(np.concatenate([train.x, validation.x]).reshape(len(data.train), -1), axis=0)
    assert np.array_equal(everything, np.sort(data.train.x.reshape(len(data.train), -1), axis=0))


def test_partial_participation_and_bayesian_aggregation(data: Dataset) -> None:
    config = small_config(rounds=5, clients={"total": 4, "rho": 0.5}, aggregation={"reset_every": 3})
    result = fedpm.run(config, net=small_net(), data=data)
    assert all(len(set(record["clients"])) == 2 for record in result.rounds)
    assert len({tuple(record["clients"]) for record in result.rounds}) > 1
    for record, masks in zip(result.rounds, (2, 4, 6, 2, 4), strict=True):  # θ is a fraction of the masks since a reset
        levels = {round(20 * ones / masks) for ones in range(masks + 1)}
        assert set(np.flatnonzero(record["theta_histogram"]).tolist()) == levels


def test_norm_layers_and_own_frozen_parameters_survive_the_model_file(data: Dataset, tmp_path: Path) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8, affine=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(288),
        nn.Linear(288, 10),
    )
    result = fedpm.run(small_config(), net=net, data=data, frozen=["4"], out=tmp_path / "run")
    x = torch.from_numpy(data.test.x)
    expected = result.model(x)
    assert torch.equal(fedpm.load(tmp_path / "run" / "model.fedpm", net=net)(x), expected)
    assert torch.abs(result.model.get_buffer("1.running_mean")).sum() > 0


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (
            nn.Linear(5, 10),
            r"cannot take an input of digits \(data.name\), of shape \(1, 8, 8\).*begin with nn.Flatten",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), r"it should be \(1, 10\): .* the 10 classes of digits"),
        (nn.Conv2d(1, 10, 3), r"output of shape \(1, 10, 6, 6\)"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(net: nn.Module, words: str, data: Dataset) -> None:
    with pytest.raises(ConfigError, match=words):
        fedpm.run(small_config(), net=net, data=data)


def test_outputs_that_stand_for_no_class_are_told(data: Dataset) -> None:
    def flat(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    parts = [(part.x, part.y % 2) for part in (data.train, data.test)]
    words = "the network gives 5 scores, and your data have 2 classes: scores 2 to 4 stand for none; let its last layer"
    with pytest.warns(UserWarning, match=words) as said:
        fedpm.run(small_config(rounds=1), net=flat(5), data=fedpm.dataset(*parts))
    assert [one.filename for one in said] == [__file__], "it points at the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedpm.run(small_config(rounds=1), net=flat(5), data=fedpm.dataset(*parts, classes=tuple("abcde")))
        fedpm.run(small_config(rounds=1), net=flat(2), data=fedpm.dataset(*parts))


def test_labels_that_do_not_begin_at_0_are_told(data: Dataset) -> None:
    parts = [(part.x, part.y % 2 + 1) for part in (data.train, data.test)]
    with pytest.raises(ConfigError, match=r"3 classes of your data; their labels go up to 2, with gaps"):
        fedpm.run(small_config(), net=nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), data=fedpm.dataset(*parts))


def test_bad_data_is_refused(data: Dataset) -> None:
    x, y = data.train.x[:10], data.train.y[:10]
    with pytest.raises(DataError, match="10 inputs and 9 labels"):
        fedpm.dataset((x, y[:9]), (x, y))
    with pytest.raises(DataError, match="labels are integers, and those of train numbers"):
        fedpm.dataset((x, y.astype(float)), (x, y))
    with pytest.raises(DataError, match="train: labels should be integers from 0"):
        fedpm.dataset((x, y.astype(complex)), (x, y))
    with pytest.raises(DataError, match="NaN"):
        fedpm.dataset((x * np.float32("nan"), y), (x, y))
    with pytest.raises(DataError, match="only 270 training examples"):
        fedpm.run(small_config(clients={"total": 400}), net=small_net(), data=data)
    with pytest.raises(DataError, match=r"data\.train_examples = 5000"):
        fedpm.run(small_config(data={"train_examples": 5000}), net=small_net(), data=data)


def test_figures_that_clients_claim_are_known_finite_and_of_uploads_that_count(data: Dataset) -> None:
    experiment = build(small_config(), net=small_net(), data=data)
    method, state = experiment.method, experiment.method.init()
    tasks = [Task(client, method.broadcast(state).payload) for client in range(3)]
    replies = list(Sequential(experiment.clients).run(1, tasks))
    claims = ({"train_loss": 2.0, "x" * 10_000: 1.0}, {"train_loss": float("nan")}, {"train_loss": 1e9})
    exchange, changed = Exchange([0, 1, 2]), []
    for reply, claim in zip(replies, claims, strict=True):
        assert isinstance(reply.answer, ClientResult)
        payload = reply.answer.payload if reply.client < 2 else b"garbage"
        changed.append(replace(reply, answer=ClientResult(payload, claim)))
    assert len(list(exchange.accepted(method, state, iter(changed)))) == 2
    traffic = exchange.traffic(size=1000)
    assert traffic["train_loss"] == 2.0
    assert not [name for name in traffic if name.startswith("x")]


class Failing(Sequential):
    """An engine whose clients all fail in some rounds, in one way."""

    def __init__(self, clients: Clients, kind: str, rounds: set[int]) -> None:
        super().__init__(clients)
        self.kind, self.rounds = kind, rounds

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        if round not in self.rounds:
            return super().run(round, tasks)
        return iter([Reply(task.client, Fault(self.kind, "for a test"), len(task.broadcast), 0) for task in tasks])


def failing_run(kind: str, rounds: set[int], data: Dataset, out: Path | None = None) -> fedpm.Result:
    """Run three rounds with an engine whose clients all fail in some of them."""

    def start(experiment: Experiment) -> Engine:
        return Failing(experiment.clients, kind, rounds)

    return fedpm.run(small_config(), net=small_net(), data=data, start=start, out=out)


def test_a_run_in_which_every_upload_diverged_is_an_error_and_its_records_are_kept(
    data: Dataset, tmp_path: Path
) -> None:
    words = "no upload of 3 rounds could be used, for the training of all clients diverged, .*: lower local.lr, or .*"
    with (
        pytest.raises(EngineError, match=words + "rounds.jsonl says why of each client") as refused,
        pytest.warns(UserWarning, match="round 1 learned nothing") as said,
    ):
        failing_run("diverged", {1, 2, 3}, data, tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert [one.filename for one in said] == [__file__], "once, and it points at the caller"
    assert len(RunFolder(tmp_path / "run").records()) == 3
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_round_in_which_every_upload_diverged_is_told_and_the_run_goes_on(data: Dataset) -> None:
    with pytest.warns(UserWarning, match="learned nothing, for the training of all its clients diverged") as said:
        assert len(failing_run("diverged", {1, 3}, data).rounds) == 3
    assert [str(one.message).split(" learned")[0] for one in said] == ["round 1", "round 3"]


def test_rounds_in_which_nobody_is_there_are_neither_told_nor_an_error(data: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(failing_run("offline", {1, 2, 3}, data).rounds) == 3
