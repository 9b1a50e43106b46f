"""What runs, but hardly as its user means it, is warned of in one sentence."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError
from fedpm.experiment.build import build
from tests.command import fedpm as command
from tests.small import small_config, small_net

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


def told(data: Dataset, net: nn.Module | None = None, loss: str | None = None) -> list[str]:
    """Return the warnings of an experiment."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(small_config(data={}), net=net or nn.Linear(4, 3), data=data, loss=loss)
    return [str(one.message) for one in caught]


def test_columns_of_very_different_size_are_told_and_others_are_not(data: Dataset) -> None:
    large = X * np.array([1, 0, 5000, 1], np.float32)
    (sentence,) = told(fedpm.dataset((large, Y), (large, Y)))
    assert re.match(
        r"input 3 of 4 is about [45],\d{3} times as large as input [14], and will drown it: stand", sentence
    )
    assert not told(fedpm.dataset((X * 9, Y), (X, Y)))
    assert not told(data, small_net())


def test_a_column_that_drowns_another_is_told_by_its_name() -> None:
    table = {"age": X[:, 0], "weight": X[:, 1] * 5000, "c": X[:, 2], "d": X[:, 3], "label": Y}
    (sentence,) = told(fedpm.dataset(table, table))
    assert re.match(r"column 'weight' of 4 is about [45],\d{3} times as large as column '(age|c|d)', and", sentence)


def test_inputs_far_above_one_are_told() -> None:
    (sentence,) = told(fedpm.dataset((X * 100, Y), (X, Y)))
    assert sentence.startswith("inputs of your data are about 101 in size, and a network is made for about 1: divide")


def test_numbers_to_learn_that_are_far_from_zero_and_one_are_told() -> None:
    for scale, shift, words in ((70, 150, "147 on average and spread by 63.8"), (0.01, 0, "spread by 0.009")):
        y = X[:, 0] * scale + shift
        (sentence,) = told(fedpm.dataset((X, y), (X, y)), nn.Linear(4, 1), "mse")
        assert words in sentence, sentence
    assert not told(fedpm.dataset((X, X[:, 0]), (X, X[:, 0])), nn.Linear(4, 1), "mse")


def test_whole_numbers_that_may_be_quantities_are_told() -> None:
    years = np.arange(60) % 40
    (sentence,) = told(fedpm.dataset((X, years), (X, years)), nn.Linear(4, 40))
    assert re.match(r"labels of your data are \d+ different whole numbers in 54 examples: if they are quant", sentence)


def test_one_class_alone_and_classes_with_gaps_are_told() -> None:
    for labels, net, words in (
        (Y * 0 + 1, nn.Linear(4, 2), "all examples of your data are of the class '1': there is nothing to tell apart"),
        (
            1 + Y % 2,
            nn.Linear(4, 3),
            "labels of your data go up to 2, and 1 of these 3 classes has no examples: number",
        ),
    ):
        (sentence,) = told(fedpm.dataset((X, labels), (X, labels)), net)
        assert sentence.startswith(words)


def test_a_word_that_labels_one_example_of_many_is_told() -> None:
    words = np.array(["ant", "bee", "cat"])[Y]
    words[7] = "bea"
    (sentence,) = told(fedpm.dataset((X, words), (X, np.array(["ant", "bee", "cat"])[Y])), nn.Linear(4, 4))
    assert sentence == (
        "one example of 120 in all of your data is of the class 'bea': if 'bee' is meant, correct it, or leave it out"
    )


@pytest.mark.parametrize(
    ("lr", "words"),
    [
        (
            0.001,
            r"^local.lr = 0.001: scores move by about 0.0\d+ in the \d+ steps of a round, too little to drop or keep",
        ),
        (
            1e6,
            r"^local.lr = 1e\+06: scores move by about 1e\+06 in a step, too far for the next ones to correct; leave",
        ),
        (0.3, ""),
        ("auto", ""),
    ],
)
def test_a_rate_at_which_scores_cannot_learn_is_told(lr: float | str, words: str) -> None:
    settings: dict[str, Any] = {"data": {}, "local": {"lr": lr, "epochs": 1}}
    for algorithm in ("fedpm", "fedavg"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            own = fedpm.dataset((X, Y), (X, Y))
            build(small_config(**settings, algorithm=algorithm), net=nn.Linear(4, 3), data=own)
        told_of = [str(one.message) for one in caught if "scores move" in str(one.message)]
        assert len(told_of) == bool(words and algorithm == "fedpm")
        assert all(re.match(words, sentence) for sentence in told_of)


def test_clients_of_one_class_each_are_told() -> None:
    def own(second: int) -> Dataset:
        chosen = {"a": Y == 0, "b": Y == 1 if second else Y < 2}
        return fedpm.federation({name: (X[rows], Y[rows]) for name, rows in chosen.items()}, test=(X[Y < 2], Y[Y < 2]))

    (sentence,) = told(own(second=1), nn.Linear(4, 2))
    assert sentence.startswith("each of 2 clients has examples of one class alone, and unlearns the others")
    assert not told(own(second=0), nn.Linear(4, 2))


def test_classes_that_are_tested_and_trained_by_nobody_are_told() -> None:
    few = Y < 2
    own = fedpm.federation({"a": (X[few], Y[few])}, test=(X, Y), classes=("ant", "bee", "cat"))
    (sentence,) = told(own)
    assert sentence.startswith(
        "no client trains on these classes of the test data: cat; they will not be learned: give"
    )


def test_a_class_that_the_network_has_no_score_for_is_named_if_only_test_data_have_it() -> None:
    words = np.array(["ant", "bee", "cat"])[Y]
    few = words != "cat"
    own = fedpm.dataset((X[few], words[few]), (X, words))
    sentence = (
        "it should be (1, 3): a score for each of the 3 classes of your data; 'cat' occurs in the test data alone"
    )
    with pytest.raises(ConfigError, match=f"{re.escape(sentence)}$"):
        told(own, nn.Linear(4, 2))


def test_clients_that_a_table_names_and_a_split_leaves_out_of_account_are_told(tmp_path: Path) -> None:
    rows = [
        "a,b,label,client",
        *(f"{x[0]},{x[1]},{y},{place % 2}" for place, (x, y) in enumerate(zip(X, Y, strict=True))),
    ]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    settings: dict[str, Any] = {"data.name": "folder", "data.path": "table.csv", "model.name": "mlp", "rounds": 1}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    small = ["--set", "local.epochs=1", "--workers", "1", "--set", "clients.total=2"]
    done = command("run", *words, *small, "--out", "dealt", cwd=tmp_path)
    assert done.code == 0
    assert done.stderr == (
        "fedpm: warning: table says which of 2 clients has which example, and data.split = 'iid' deals them anew: set "
        "data.split=given to leave each client its own\n"
    )
    assert not command("run", *words, *small, "--set", "data.split=given", "--out", "own", cwd=tmp_path).stderr


def test_a_network_that_ends_in_a_softmax_is_told() -> None:
    data = fedpm.dataset((X, Y), (X, Y))
    (sentence,) = told(data, nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)))
    assert sentence.startswith("the network gives probabilities")
    assert sentence.endswith("leave out the softmax at the end")
    for end in (nn.LogSoftmax(1), nn.Sigmoid(), nn.ReLU()):  # the first changes nothing, others may be meant
        assert not told(data, nn.Sequential(nn.Linear(4, 3), end))


def test_a_network_without_data_is_told_on_what_it_is_trained() -> None:
    settings: dict[str, Any] = {"rounds": 1, "local": {"epochs": 1}, "workers": 1}
    net, data = small_net(), {"train_examples": 100}
    words = "your network is trained on digits, as the preset quickstart says; give data="
    with pytest.warns(UserWarning, match=words) as said:
        fedpm.run(net=net, data=data, **settings)
    assert [one.filename for one in said] == [__file__], "it points at the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fedpm.run(net=net, data={**data, "name": "digits"}, **settings)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((8, 8, 3), "images should have their channels first: x.transpose(0, 3, 1, 2)"),
        ((8, 8), "images should have a channel, one if they are grey: x[:, None]"),
        ((2, 8, 8), "fit the first layer to this shape, or begin with nn.Flatten() if that is a row"),
    ],
)
def test_images_that_do_not_fit_are_told_how_to_turn_them(shape: tuple[int, ...], remedy: str) -> None:
    x = np.zeros((60, *shape), np.float32)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(fedpm.ConfigError, match=f"{re.escape(remedy)}$"):
        build(small_config(data={}), net=net, data=fedpm.dataset((x, Y), (x, Y)))


def test_classes_that_differ_in_spaces_alone_are_told() -> None:
    words = np.array(["benign", "benign ", "sick"])[Y]
    (sentence,) = told(fedpm.dataset((X, words), (X, words)))
    assert sentence == (
        "the classes 'benign' and 'benign ' of your data differ in spaces alone, and count as two: if one is meant, "
        "take the spaces out of the labels"
    )
    letters = np.array(["a", "A", "b"])[Y]
    assert not told(fedpm.dataset((X, letters), (X, letters)))
