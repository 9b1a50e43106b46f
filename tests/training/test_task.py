"""Losses and metrics of one's own: what is learned, by what networks are judged, and what does not fit."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedpm
from fedpm.config import sections
from fedpm.data.datasets import Dataset, Shard
from fedpm.errors import ArtifactError, ConfigError
from fedpm.experiment.record import best_round, headline
from fedpm.training.evaluation import evaluate
from fedpm.training.losses import LOSSES, cross_entropy
from fedpm.training.metrics import METRICS, metric
from fedpm.training.task import Task, imported, task_of
from tests.small import small_config, small_net

FEW = {"rounds": 4, "local": {"epochs": 3}, "data": {"train_examples": 300}, "clients": {"total": 2}}


def halved(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half of the cross-entropy: a loss of one's own that can be imported."""
    return F.cross_entropy(output, target) / 2


def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The share of wrong answers."""
    return (output.argmax(1) != target).float().mean()


class Named(nn.Module):
    """Gives its output as Hugging Face does: in a dict, or as an attribute."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.net, self.wrap = small_net(), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.net(x))


class Holder:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def digits_with(data: Dataset, targets: Callable[[np.ndarray[Any, Any]], Any]) -> Dataset:
    return fedpm.dataset((data.train.x, targets(data.train.y)), (data.test.x, targets(data.test.y)))


def net_of(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def test_the_settings_know_the_names_of_all_losses_and_metrics() -> None:
    assert tuple(LOSSES) == sections.LOSSES
    assert tuple(METRICS) == sections.METRICS


@pytest.mark.parametrize(
    ("name", "output", "target", "value"),
    [
        ("accuracy", [[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]], [1, 0, 0], 2 / 3),
        ("accuracy", [[0.5], [-1.0], [2.0], [3.0]], [1, 0, 0, 1], 0.75),  # one logit
        ("accuracy", [[0.5, -1.0], [2.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], 0.75),  # two labels
        ("accuracy", [[[1.0, 0.0], [0.0, 1.0]]], [[0, -100]], 1.0),  # a position of no class
        ("f1", [[1.0], [1.0], [-1.0]], [1, 0, 1], 0.5),
        ("f1", [[1.0, -1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], (2 / 3 + 1) / 2),
        ("f1", [[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]], [1, 0, 0], 2 / 3),
        ("mse", [[1.0], [3.0]], [0.0, 1.0], 2.5),  # (N, 1) against (N,) is not spread to N × N
        ("mae", [[1.0], [3.0]], [0.0, 1.0], 1.5),
        ("r2", [[1.0], [3.0]], [1.0, 2.0], -1.0),
        ("loss", [[1.0], [3.0]], [0.0, 1.0], 2.5),
    ],
)
def test_metrics_are_what_their_names_say(name: str, output: Any, target: Any, value: float) -> None:
    class Echo(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    scores, targets = np.array(output, np.float32), np.array(target)
    task = Task(LOSSES["mse"] if name in ("mse", "mae", "r2", "loss") else lambda o, t: o.sum(), (METRICS[name],))
    found = evaluate(Echo(), Shard(scores, targets), torch.device("cpu"), task)
    assert found.values[name] == pytest.approx(value)


def test_accuracy_over_batches_is_the_quotient_of_counts(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    whole = evaluate(net, data.test, torch.device("cpu"))
    right = int((net(torch.from_numpy(data.test.x)).argmax(1).numpy() == data.test.y).sum())
    assert whole.accuracy == right / len(data.test)
    monkeypatch.setattr("fedpm.training.evaluation.BATCH", 7)
    assert evaluate(net, data.test, torch.device("cpu")).accuracy == whole.accuracy


@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_a_loss_and_metrics_of_ones_own_are_used(algorithm: str, data: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data, "loss": halved}
    given["metrics"] = [metric(wrong, lower=True), "accuracy"]
    config = small_config(algorithm=algorithm, keep="best")
    result = fedpm.run(config, out=tmp_path / "run", **given)
    for record in result.rounds:
        assert list(record["metrics"]) == ["wrong", "accuracy"]
        assert record["lower"] == ["wrong"]
        assert record["metrics"]["wrong"] == pytest.approx(1 - record["accuracy"])
    best = min(result.rounds, key=lambda record: record["validation_metrics"][record["mode"]]["wrong"] or 0)
    assert best_round(result.rounds) is best
    assert result.summary["round"] == best["round"]
    assert headline(result.summary) == f"wrong {1 - result.summary['accuracy']:.3f}"
    plain = fedpm.run(config, net=small_net(), data=data)
    assert result.rounds[0]["train_loss"] != plain.rounds[0]["train_loss"]
    text = (tmp_path / "run" / "config.toml").read_text()
    assert 'loss = "own:halved"' in text
    assert "own:wrong" in text
    with pytest.raises(ConfigError, match=r"task\.loss = 'own:halved': came through the Python API"):
        fedpm.resume(tmp_path / "run", net=small_net(), data=data)
    with pytest.raises(ArtifactError, match=r"task\.loss = 'cross-entropy' instead of 'own:halved'"):
        fedpm.resume(tmp_path / "run", **{**given, "loss": "cross-entropy"})
    assert fedpm.resume(tmp_path / "run", **given).file.to_bytes() == result.file.to_bytes()


def test_a_loss_is_named_by_its_module_too(data: Dataset) -> None:
    settings = {"loss": f"{__name__}:halved", "metrics": [f"{__name__}:wrong"]}
    by_name = fedpm.run(small_config(rounds=1, task=settings), net=small_net(), data=data)
    given = fedpm.run(small_config(rounds=1), net=small_net(), data=data, loss=halved, metrics=wrong)
    assert by_name.rounds[0]["train_loss"] == given.rounds[0]["train_loss"]
    assert by_name.rounds[0]["metrics"] == given.rounds[0]["metrics"]


@pytest.mark.slow
def test_a_loss_of_ones_own_reaches_worker_processes(data: Dataset) -> None:
    given: dict[str, Any] = {"net": small_net(), "data": data, "loss": halved}
    alone, shared = (fedpm.run(small_config(rounds=1, workers=count), **given) for count in (1, 2))
    assert alone.file.to_bytes() == shared.file.to_bytes()


@pytest.mark.parametrize("wrap", [lambda x: {"logits": x, "hidden": x[:1]}, Holder], ids=["dict", "object"])
def test_outputs_may_hold_their_logits(wrap: Callable[[torch.Tensor], Any], data: Dataset) -> None:
    plain = fedpm.run(small_config(rounds=1), net=small_net(), data=data)
    named = fedpm.run(small_config(rounds=1), net=Named(wrap), data=data)
    assert named.summary["accuracy"] == plain.summary["accuracy"]


@pytest.mark.parametrize(
    ("loss", "targets", "outputs"),
    [
        ("binary", lambda y: y >= 5, 1),
        ("binary", lambda y: np.stack([y >= 5, y % 2 == 1], 1), 2),
        ("binary", lambda y: np.stack([y >= 5, y % 2 == 1], 1).astype(int), 2),
        ("mse", lambda y: y / 10, 1),
        ("mae", lambda y: np.stack([y, -y], 1).astype(float), 2),
        ("huber", lambda y: y, 1),
        ("binary", lambda y: y / 10, 1),
    ],
)
def test_targets_of_every_kind_train(
    loss: str, targets: Callable[[np.ndarray[Any, Any]], Any], outputs: int, data: Dataset
) -> None:
    result = fedpm.run(small_config(**FEW), net=net_of(outputs), data=digits_with(data, targets), loss=loss)
    first, last = result.rounds[0], result.rounds[-1]
    assert last["train_loss"] is not None
    assert first["train_loss"] is not None
    assert last["train_loss"] < first["train_loss"]
    assert ("accuracy" in last) == (loss == "binary")


MISFITS: list[tuple[dict[str, Any], Callable[[np.ndarray[Any, Any]], Any], int, str]] = [
    ({}, lambda y: y / 2, 10, "task.loss = 'auto': labels are not one class an example"),
    (
        {},
        lambda y: y + 0.0,
        10,
        "an example (the first is 0.0, float32: if that is a class, give y.astype(int), in a table 0), so say",
    ),
    ({}, lambda y: y[:, None], 10, ": if that is one class each, give y.ravel()), so say what to lower"),
    ({}, lambda y: y[:, None] + 0.0, 10, ": if that is one class each, give y.ravel().astype(int)), so say"),
    (
        {},
        lambda y: np.eye(10)[y],
        10,
        "(the first is [1, 0, 0, 0, 0, 0, 0, 0, …], float32: if that is one-hot, give y.a",
    ),
    (
        {"loss": "cross-entropy"},
        lambda y: np.eye(10, dtype=int)[y],
        10,
        ", bool: if that is one-hot, give y.argmax(1))",
    ),
    (
        {"loss": "cross-entropy"},
        lambda y: y + 0.0,
        10,
        ", float32: if that is a class, give y.astype(int), in a table 4); they",
    ),
    ({"loss": "binary"}, lambda y: y, 10, "task.loss = 'binary': a label of your data is 9; it compares truth values"),
    ({"loss": "binary"}, lambda y: y > 4, 2, "(1, 2) for one input; it should be (1, 1): one number"),
    ({"loss": "mse"}, lambda y: y / 2, 3, "(1, 3) for one input; it should be (1, 1): one number"),
    (
        {"loss": "cross-entropy"},
        lambda y: y / 2,
        10,
        "labels of your data are float32 of shape () (the first is ",
    ),
    ({"loss": lambda o, t: o}, lambda y: y, 10, "task.loss = 'own:<lambda>' gave a tensor of shape (1, 10); it"),
    ({"loss": F.nll_loss}, lambda y: y / 2, 10, "task.loss = 'own:nll_loss' cannot be computed from an output"),
    (
        {},
        lambda y: y * 0,
        1,
        "the only class of your data is '0': there is nothing to tell apart; give examples of",
    ),
    ({"loss": "mze"}, lambda y: y, 10, "task.loss = 'mze': did you mean mse? There are: cross-entropy"),
    ({"loss": 3}, lambda y: y, 10, "loss = 3: should be a function of output and target, or a name"),
    ({"loss": "nowhere:loss"}, lambda y: y, 10, "task.loss = 'nowhere:loss': there is no module nowhere here"),
    ({"metrics": [3]}, lambda y: y, 10, "metrics: 3 is neither a function"),
    ({"metrics": [wrong, wrong]}, lambda y: y, 10, "metrics wrong, wrong: two have one name"),
    ({"metrics": lambda o, t: o}, lambda y: y, 10, "metric '<lambda>' gave a tensor of shape (359, 10); it should"),
    ({"metrics": lambda o, t: o @ t}, lambda y: y, 10, "metric '<lambda>' cannot be computed from outputs and"),
    ({"loss": lambda o, t: torch.ones(())}, lambda y: y, 10, "'own:<lambda>' does not depend on the output; it"),
    ({"metrics": "mse"}, lambda y: y, 10, "metric 'mse' cannot be computed from outputs and targets of 2 examples"),
    ({"metrics": "r2"}, lambda y: y, 10, "metric 'r2' cannot be computed from outputs and targets of 2 examples"),
    ({"loss": "mse", "metrics": "f1"}, lambda y: y / 2, 1, "metric 'f1' counts classes or truth values, and labels of"),
    (
        {"loss": "binary", "local": {"logit_adjustment": 1.0}},
        lambda y: y > 4,
        1,
        "logit_adjustment = 1.0: weighs",
    ),
    (
        {"loss": "mse", "data": {"split": "dirichlet", "alpha": 1.0}},
        lambda y: y / 2,
        1,
        "no class an example in your data to divide by",
    ),
]


@pytest.mark.parametrize(("given", "targets", "outputs", "sentence"), MISFITS, ids=range(len(MISFITS)))
def test_a_misfit_is_one_sentence(
    given: dict[str, Any], targets: Callable[[np.ndarray[Any, Any]], Any], outputs: int, sentence: str, data: Dataset
) -> None:
    own = digits_with(data, targets)
    keys = {key: given.pop(key) for key in ("local", "data") if key in given}
    with pytest.raises(fedpm.FedPMError, match=re.escape(sentence)) as raised:
        fedpm.run(small_config(**keys) if keys else small_config(), net=net_of(outputs), **given | {"data": own})
    assert "\n" not in str(raised.value)


def test_pixels_of_no_class_count_nowhere() -> None:
    output, target = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2, -1], [-100, -1, -1, 1]])
    known = target >= 0
    wanted = F.cross_entropy(output.movedim(1, 2)[known], target[known])
    assert torch.allclose(cross_entropy(output, target), wanted)
    assert cross_entropy(output, torch.full((2, 4), -1)) == 0


def test_inputs_of_a_type_that_the_network_does_not_take_are_one_sentence(data: Dataset) -> None:
    own = fedpm.dataset(*((part.x.astype(np.int64), part.y) for part in (data.train, data.test)))
    with pytest.raises(ConfigError, match=r"of shape \(1, 8, 8\): .*; they are int64: give floats, unless"):
        fedpm.run(small_config(), net=net_of(10), data=own)


def test_one_example_that_a_norm_layer_cannot_train_on_is_told_with_its_client(data: Dataset) -> None:
    x, y = data.train.x, data.train.y
    held = (data.test.x, data.test.y)
    few = fedpm.federation({"oslo": (x[:9], y[:9]), "bergen": (x[:1], y[:1])}, test=held, validation=held)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(fedpm.FedPMError, match=r"client bergen: trains on a batch of one example .*; give it more"):
        fedpm.run(small_config(data={}), net=net, data=few)
    pictures = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    assert fedpm.run(small_config(data={}, rounds=1), net=pictures, data=few).rounds


def test_an_output_without_logits_is_one_sentence(data: Dataset) -> None:
    with pytest.raises(ConfigError, match="the network gives a dict of scores; it should give a tensor"):
        fedpm.run(small_config(), net=Named(lambda x: {"scores": x}), data=data)


PRIVATE = {"unit": "example", "epsilon": 8.0, "noise": 2.0}


@pytest.mark.slow
def test_privacy_takes_losses_whose_gradient_each_example_has(data: Dataset) -> None:
    result = fedpm.run(small_config(rounds=1, privacy=PRIVATE), net=small_net(), data=data, loss=halved)
    assert result.summary["privacy"]["epsilon"] <= 8


def test_privacy_refuses_a_loss_that_looks_at_values(data: Dataset) -> None:
    def looking(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return halved(output, target) * float(output.detach().sum())

    with pytest.raises(ConfigError, match=r"the gradient of task\.loss = 'own:looking' cannot be computed for each"):
        fedpm.run(small_config(privacy=PRIVATE), net=small_net(), data=data, loss=looking)


def test_settings_of_a_task_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"task\.loss = 'mze': did you mean mse\?"):
        fedpm.load_config("quickstart", ["task.loss=mze"])
    assert fedpm.load_config("quickstart", ["task.metrics=mae"]).task.metrics == ["mae"]
    with pytest.raises(ConfigError, match=r"task\.metrics = 'acuracy': did you mean accuracy\?"):
        fedpm.load_config("quickstart", ['task.metrics=["mae", "acuracy"]'])


def test_a_figure_that_is_no_number_is_never_the_best() -> None:
    assert metric(wrong, lower=True).rank(0.25) == -0.25
    assert metric(wrong).rank(float("nan")) == -math.inf
    task, _, _ = task_of("mse", [], labelled=False)
    assert task.first.name == "loss"


@pytest.mark.slow
def test_torchmetrics_say_themselves_what_is_better(data: Dataset) -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed: pip install torchmetrics")
    f1 = torchmetrics.F1Score("multiclass", num_classes=10, average="macro")
    result = fedpm.run(small_config(rounds=1), net=small_net(), data=data, metrics=[f1, "f1", "accuracy"])
    found = result.rounds[0]["metrics"]
    assert list(found) == ["MulticlassF1Score", "f1", "accuracy"]
    assert found["MulticlassF1Score"] == pytest.approx(found["f1"], abs=1e-6)
    assert metric(torchmetrics.MeanSquaredError()).lower
    with pytest.raises(ConfigError, match="does not say whether more is better"):
        metric(torchmetrics.SumMetric())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("./net.py:make", "./net is a path, and should be a name that Python imports, such as net:make; go to"),
        ("../net:make", "../net is a path"),
        (".net:make", ".net is a path"),
        (
            "broken_on_purpose:make",
            "fails while it is imported (ZeroDivisionError('division by zero'), broken_on_purpose.py, line 1); mend it",
        ),
        ("unwritten_on_purpose:make", "(SyntaxError('invalid syntax'), unwritten_on_purpose.py, line 2); mend it"),
        ("lacking_on_purpose:make", "lacking_on_purpose fails while it is imported (ModuleNotFoundError"),
        ("nowhere_on_purpose:make", "there is no module nowhere_on_purpose here, nor is one installed; go to the"),
        ("math:copy", "math has no 'copy'; did you mean copysign? There are: "),
    ],
)
def test_a_function_that_cannot_be_imported_is_one_sentence(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_on_purpose.py").write_text("1 / 0\n")
    (tmp_path / "unwritten_on_purpose.py").write_text("\nx = 1 +\n")
    (tmp_path / "lacking_on_purpose.py").write_text("import nowhere_on_purpose\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        imported("--net", name)
