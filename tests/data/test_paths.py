"""Tables by their path: which columns are label and client, and what is tested on."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedpm
from fedpm import config as configs
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.division import load
from tests.command import Command, cli
from tests.data.test_federation import write_images

__all__ = ["cli"]

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
WORDS = np.array(["sick", "well"])[(X[:, 0] > 0).astype(int)]
OWNERS = np.array(["oslo", "bergen", "narvik"])[np.arange(60) % 3]


def write(path: Path, label: str = "label", client: str | None = "client", separator: str = ",") -> Path:
    """Write a table of three inputs, and perhaps of clients."""
    names = ["a", "b", "c", label, *([client] if client else [])]
    rows = [[*map(str, x), word, *([owner] if client else [])] for x, word, owner in zip(X, WORDS, OWNERS, strict=True)]
    path.write_text("\n".join(separator.join(row) for row in [names, *rows]) + "\n")
    return path


def loaded(path: Path, *settings: str) -> Dataset:
    """Return the data of settings on a table."""
    return load(configs.load(None, ["data.name=folder", f'data.path="{path}"', *settings]).data)


def test_columns_have_the_names_that_settings_say(tmp_path: Path) -> None:
    other = write(tmp_path / "table.csv", "diagnosis", "ward")
    made = loaded(other, "data.label=diagnosis", "data.client=ward", "data.split=given")
    like = loaded(write(tmp_path / "usual.csv"), "data.split=given")
    assert isinstance(made, fedpm.Federation)
    assert (made.clients, made.classes) == (("oslo", "bergen", "narvik"), ("sick", "well"))
    assert np.array_equal(made.train.x, like.train.x)
    assert np.array_equal(fedpm.load_dataset(other, label="diagnosis", client="ward").train.y, like.train.y)


@pytest.mark.parametrize(
    ("names", "settings", "sentence"),
    [
        (("label", "ward"), ["data.split=given"], "table.csv: there is no column 'client'; there are: a, b, c, label"),
        (("label", "ward"), ["data.client=wart"], "no column 'wart'; did you mean ward? There are: a, b, c, label, wa"),
        (
            ("class", None),
            [],
            "table.csv: there is no column 'label'; there are: a, b, c, class; say which is the label",
        ),
    ],
)
def test_a_column_that_is_not_there_is_told_with_those_that_are(
    names: tuple[str, str | None], settings: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        loaded(write(tmp_path / "table.csv", *names), *settings)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_another_separator_than_a_comma_is_told(separator: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"its names are separated by {separator!r}; values should be by")
    ) as told:
        loaded(write(tmp_path / "table.csv", separator=separator))
    assert "with decimal=',' in read_csv if numbers have a comma" in str(told.value)


def test_a_table_of_its_own_is_tested_on_and_all_of_the_other_trained(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.csv"), write(tmp_path / "test.csv")
    for split in ("given", "iid"):
        made = loaded(train, f'data.test="{test}"', f"data.split={split}")
        assert (len(made.train), made.test.x.tolist()) == (60, X.tolist())
    plain = write(tmp_path / "plain.csv", client=None)
    assert len(loaded(plain, f'data.test="{plain}"').test) == 60


def test_names_of_columns_belong_to_a_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", train_x=X, train_y=WORDS, test_x=X, test_y=WORDS)
    for setting, sentence in (
        ("data.label=y", "data.label = 'y': names a column, and"),
        (f"data.test={tmp_path / 'all.npz'}", "data.test = '.*all.npz': .* holds test_x and test_y already"),
        (f"data.test={tmp_path / 'al.npz'}", "al.npz': there is no such file or folder; did you mean .*all.npz[?]$"),
    ):
        with pytest.raises(DataError, match=sentence):
            loaded(tmp_path, setting)
    with pytest.raises(ConfigError, match=r"^data.client = 'ward' belongs to data.path, and there is none$"):
        configs.load(None, ["data.client=ward"])


def test_a_file_is_scored_whole_and_a_data_set_on_its_test_part(cli: Command, tmp_path: Path) -> None:
    table, few = write(tmp_path / "table.csv", "diagnosis", "ward"), tmp_path / "few.csv"
    few.write_text("\n".join(line for line in table.read_text().splitlines() if not line.endswith("oslo")) + "\n")
    columns = {"label": "diagnosis", "client": "ward"}
    settings = {"name": "folder", "path": str(table), "split": "given", **columns}
    fedpm.run("quickstart", model={"name": "mlp"}, rounds=1, local={"epochs": 1}, workers=1, data=settings, out="run")
    usual = ["--data", str(write(tmp_path / "usual.csv")), "--label", "label", "--client", "client"]
    calls = {"own": ["run"], "file": ["run", "--data", str(few)], "named": ["run/model.fedpm", *usual]}
    scored = {name: cli("model", "eval", *words).stdout.split("on ")[-1] for name, words in calls.items()}
    assert scored["own"] == "the test part of table, 6 examples\n"
    assert scored["file"] == "all of few, 40 examples\n"
    assert scored["named"] == "all of usual, 60 examples\n"
    shown = cli("data", "show", str(table), "--label", "diagnosis", "--client", "ward", "--split", "given").stdout
    assert "client narvik: 18 = sick:" in shown


def test_a_folder_of_images_is_scored_whole_and_one_of_clients_on_its_test_part(cli: Command, tmp_path: Path) -> None:
    write_images(tmp_path / "oslo" / "train", 20)
    shutil.copytree(tmp_path / "oslo" / "train", tmp_path / "alone" / "test")
    shutil.copytree(tmp_path / "oslo", tmp_path / "both")
    write_images(tmp_path / "both" / "test", 3)
    settings = {"name": "folder", "path": str(tmp_path / "both")}
    fedpm.run(
        "quickstart", model={"name": "mlp"}, rounds=1, local={"epochs": 1}, workers=1, clients={"total": 2},
        data=settings, out="run",
    )  # fmt: skip
    for source, part in (
        ("oslo/train", "all of train, 40 examples"),
        ("alone", "all of alone, 40 examples"),
        ("both", "the test part of both, 6 examples"),
        ("oslo", "the test part of oslo, 4 examples"),
    ):
        done = cli("model", "eval", "run", "--data", source)
        assert done.stdout.endswith(f" on {part}\n"), done.stderr


def test_another_number_of_clients_than_a_table_names_is_refused(cli: Command, tmp_path: Path) -> None:
    table = {"name": "folder", "path": str(write(tmp_path / "table.csv")), "split": "given"}
    sentence = "clients.total = 7: there are 3 clients in table, who all belong to the run; leave it out"
    with pytest.raises(ConfigError, match=sentence):
        fedpm.run("quickstart", model={"name": "mlp"}, data=table, clients={"total": 7})
    words = [word for key, value in table.items() for word in ("--set", f"data.{key}={value}")]
    done = cli("run", *words, "--set", "model.name=mlp", "--set", "clients.total=7", "--out", "run")
    assert (done.code, sentence in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "run").exists()


def test_words_of_a_file_have_the_numbers_that_the_model_gave_them(cli: Command, tmp_path: Path) -> None:
    table = write(tmp_path / "table.csv", client=None)
    fedpm.run(
        "quickstart", model={"name": "mlp"}, rounds=1, local={"epochs": 1}, workers=1, clients={"total": 2},
        data={"name": "folder", "path": str(table)}, out="run",
    )  # fmt: skip
    head, *rows = table.read_text().splitlines()
    right = {}
    for word in ("sick", "well"):
        (tmp_path / f"{word}.csv").write_text("\n".join([head, *(row for row in rows if row.endswith(word))]) + "\n")
        told = cli("model", "eval", "run", "--data", f"{word}.csv").stdout
        accuracy, count = re.findall(r"accuracy ([\d.]+) .* (\d+) examples", told)[0]
        right[word] = round(float(accuracy) * int(count))
    whole = cli("model", "eval", "run", "--data", "table.csv").stdout
    assert whole.startswith(f"accuracy {sum(right.values()) / 60:.4f}")
