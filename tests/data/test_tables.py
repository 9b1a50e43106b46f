"""Columns of tables have names, and names say which input is which: between clients, test data and models."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedpm
from fedpm.errors import DataError
from fedpm.model.weights import columns_of, open_model
from tests.command import Command, cli

__all__ = ["cli"]

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
WORDS = np.array(["sick", "well"])[(X[:, 0] > 0).astype(int)]
TABLE: dict[str, npt.NDArray[Any]] = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": WORDS}
SMALL: dict[str, Any] = {"rounds": 1, "local": {"epochs": 1}, "workers": 1, "model": {"name": "mlp"}}


def of(*names: str, **more: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the table with these columns, in this order."""
    return {name: {**TABLE, **more}[name] for name in names}


def write(path: Path, table: dict[str, npt.NDArray[Any]]) -> Path:
    """Write a table as .csv."""
    rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_tables_are_put_in_one_order_by_the_names_of_their_columns(tmp_path: Path) -> None:
    usual, other = write(tmp_path / "usual.csv", TABLE), write(tmp_path / "other.csv", of("label", "c", "a", "b"))
    made = fedpm.federation({"oslo": usual, "bergen": of("b", "label", "c", "a")}, test=other, validation=other)
    assert made.columns == made.at(1).columns == ("a", "b", "c")
    assert made.validation is not None
    for x in (*(made.train.x[part] for part in made.parts()), made.test.x, made.validation.x):
        assert np.array_equal(x, X)
    alone = fedpm.dataset(other, usual)
    assert alone.columns == ("c", "a", "b")
    assert np.array_equal(alone.train.x, alone.test.x)
    assert np.array_equal(alone.ordered(("a", "b", "c")).train.x, X)


def test_pandas_tables_are_put_in_order_too() -> None:
    pandas = pytest.importorskip("pandas")
    usual, other = pandas.DataFrame(TABLE), pandas.DataFrame(of("c", "b", "a", "label"))
    made = fedpm.federation({"a": other[:20], "b": usual[20:40]}, test=usual[40:])
    assert made.columns == ("c", "b", "a")
    assert np.array_equal(made.train.x, X[:40, ::-1])
    assert np.array_equal(made.test.x, X[40:, ::-1])


def test_clients_on_demand_are_put_in_the_order_of_the_server() -> None:
    tables = [TABLE, of("c", "b", "a", "label"), of("a", "c", "label")]
    made = fedpm.on_demand(lambda client: tables[client], 3, validation=TABLE, test=of("b", "c", "a", "label"))
    assert np.array_equal(made.shard(1).x, X)
    assert np.array_equal(made.test.x, X)
    with pytest.raises(DataError, match=r"^client 2: lacks the column 'b' of the server; give it the same columns$"):
        made.shard(2)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("a", "c", "label"), "test: lacks the column 'b' of client oslo; give it the same columns"),
        (("a", "b", "c", "d", "label"), "test: has the column 'd', which client oslo has not; give it"),
        (
            ("a", "d", "e", "label"),
            "test: lacks the columns 'b', 'c' of client oslo and has the columns 'd', 'e', which",
        ),
    ],
)
def test_columns_that_are_missing_or_too_many_are_named(names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}"):
        fedpm.federation({"oslo": TABLE}, test=of(*names, d=X[:, 0], e=X[:, 1]))


def test_what_has_no_names_counts_by_position() -> None:
    made = fedpm.federation({"oslo": (X, WORDS), "bergen": of("c", "b", "a", "label")}, test=TABLE)
    assert np.array_equal(made.train.x, np.concatenate([X, X[:, ::-1]]))
    assert np.array_equal(made.test.x, X[:, ::-1])
    plain = fedpm.dataset((X, WORDS), (X, WORDS))
    assert plain.columns == plain.ordered(("c", "b", "a")).columns == ()


@pytest.mark.parametrize("algorithm", ["fedpm", "fedavg"])
def test_a_model_knows_its_columns_and_takes_them_in_any_order(algorithm: str, cli: Command, tmp_path: Path) -> None:
    table = write(tmp_path / "table.csv", TABLE)
    write(tmp_path / "other.csv", of("c", "label", "b", "a"))
    write(tmp_path / "less.csv", of("a", "label", "c"))
    data = {"name": "folder", "path": str(table)}
    fedpm.run("quickstart", algorithm=algorithm, **SMALL, clients={"total": 2}, data=data, out="run")
    assert columns_of(open_model("run")) == ("a", "b", "c")
    assert "columns: 3: a, b, c\n" in cli("model", "inspect", "run").stdout
    usual, other = (cli("model", "eval", "run", "--data", f"{name}.csv").stdout for name in ("table", "other"))
    assert usual.split(" on ")[0] == other.split(" on ")[0] != ""
    done = cli("model", "eval", "run", "--data", "less.csv")
    assert (done.code, done.stderr) == (
        1,
        "fedpm: less: lacks the column 'b' of the model; give it the same columns\n",
    )


def test_a_model_from_python_knows_its_columns_of_labels_and_clients(cli: Command, tmp_path: Path) -> None:
    owners = np.array(["oslo", "bergen"])[np.arange(60) % 2]
    table = {"a": X[:, 0], "b": X[:, 1], "diagnosis": WORDS, "ward": owners}
    file = write(tmp_path / "table.csv", table)
    made = fedpm.federation(file, test=file, label="diagnosis", client="ward")
    fedpm.run("quickstart", **SMALL, data=made).file.save(tmp_path / "made.fedpm")
    done = cli("model", "eval", "made.fedpm", "--data", "table.csv")
    assert done.stdout.endswith(" on all of table, 60 examples\n"), done.stderr
    assert "label: diagnosis\nclient: ward\n" in cli("model", "inspect", "made.fedpm").stdout
    plain = fedpm.dataset(of("a", "label"), of("a", "label"))
    assert (plain.named, fedpm.dataset((X, WORDS), (X, WORDS)).named) == ({"label": "label"}, {})


def test_a_run_is_scored_on_its_test_table_though_its_training_table_is_gone(cli: Command, tmp_path: Path) -> None:
    for name in ("train.csv", "test.csv"):
        write(tmp_path / name, {"b": X[:, 1], "a": X[:, 0], "diagnosis": WORDS})
    data = {"name": "folder", "path": "train.csv", "test": "test.csv", "label": "diagnosis"}
    fedpm.run("quickstart", **SMALL, clients={"total": 2}, data=data, out="run")
    before = cli("model", "eval", "run").stdout
    assert before.endswith(" on all of test, 60 examples\n")
    (tmp_path / "train.csv").unlink()
    assert cli("model", "eval", "run").stdout == before


def test_names_that_would_fill_a_model_file_are_left_out(tmp_path: Path) -> None:
    long = {f"{name}{'x' * 100_000}" if name != "label" else name: values for name, values in TABLE.items()}
    made = fedpm.run("quickstart", **SMALL, clients={"total": 2}, data=fedpm.dataset(long, long))
    assert columns_of(made.file) == ()
    made.file.save(tmp_path / "model.fedpm")
    open_model(tmp_path / "model.fedpm")


def test_train_and_test_inputs_are_of_one_type() -> None:
    labels = np.arange(60) % 2
    sentence = (
        "test: an input is float32 of shape (3,), and at train uint8 of shape (3,); bring all to one form (uint8 is"
    )
    with pytest.raises(DataError, match=re.escape(sentence)):
        fedpm.dataset(train=(X.astype(np.uint8), labels), test=(X, labels))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (",a,label\n0,1,x\n1,2,y\n", "t.csv: column 1 has no name; name it, or leave it out: the index of a pandas"),
        ("Unnamed: 0,a,label\n0,1,x\n1,2,y\n", "t.csv: column 1 has no name; name it, or leave it out"),
        ("a,b,label\n1,2,x\n3,,y\n", "t.csv: column 'b' is empty in line 3; fill it, or leave that line out"),
        ("a,b,label\n1,2,x\n3,4,\n", "t.csv: column 'label' is empty in line 3; fill it, or leave that line out"),
        ("a,b,label\n1,2,x\n3,nan,y\n", "t.csv: column 'b' is empty (nan) in line 3 of t.csv; fill it, or leave"),
        ('a,b,label\n1,2,"x\ny"\n\n3,wet,y\n', "t.csv: column 'b' holds 'wet' in line 5 of t.csv; inputs should be"),
    ],
)
def test_cells_and_names_that_are_empty_are_told_with_their_place(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(sentence)):
        fedpm.load_dataset(tmp_path / "t.csv")


def test_empty_cells_of_a_pandas_table_are_told_with_their_place() -> None:
    pandas = pytest.importorskip("pandas")
    ages = pandas.Series([1, None, 3], dtype="Int64")
    frame = pandas.DataFrame({"age": ages, "label": ["x", "y", "x"]})
    with pytest.raises(
        DataError, match=r"train: column 'age' is empty \((<NA>|nan)\) in the row of index 1; fill it, or"
    ):
        fedpm.dataset(frame, frame)
    frame = pandas.DataFrame({"age": [1, 2, 3], "label": ["x", None, "x"]})
    with pytest.raises(
        DataError, match=r"train: label 1 is (None|nan), and others are words; fill it, or leave it out"
    ):
        fedpm.dataset(frame, frame)


def test_a_row_is_told_by_the_line_of_its_file_or_by_its_index_whichever_client_has_it(tmp_path: Path) -> None:
    owners = np.array(["oslo", "bergen"])[np.arange(60) % 2]
    wrong = np.where(np.arange(60) == 41, "wet", X[:, 1].astype(str))
    table = of("a", "b", "label", "client", b=wrong, client=owners)
    sentence = "client bergen: column 'b' holds 'wet' in {}; inputs should be numbers, with a point before decimals: "
    with pytest.raises(DataError, match=sentence.format("line 43 of a{}.csv")):
        fedpm.federation(write(tmp_path / "a{}.csv", table))
    plain = {name: values[owners == "bergen"] for name, values in table.items()}
    with pytest.raises(DataError, match=sentence.format("row 20, counted from 0")):
        fedpm.federation({"bergen": plain})
    frame = pytest.importorskip("pandas").DataFrame(table)
    with pytest.raises(DataError, match=sentence.format("the row of index 41")):
        fedpm.federation(frame)


def test_the_column_of_clients_is_no_input_in_anybodys_table(tmp_path: Path) -> None:
    owners = np.array(["oslo", "bergen"])[np.arange(60) % 2]
    table = of("a", "b", "c", "label", "ward", ward=owners)
    file = write(tmp_path / "table.csv", table)
    for source in (file, table):
        made = fedpm.federation(file, test=source, validation=source, client="ward")
        assert (made.columns, made.clients) == (("a", "b", "c"), ("oslo", "bergen"))
        assert np.array_equal(made.test.x, X)
    frame = pytest.importorskip("pandas").DataFrame(table)
    made = fedpm.federation(dict(iter(frame.groupby("ward"))), test=frame, client="ward")
    assert (made.columns, made.clients) == (("a", "b", "c"), ("bergen", "oslo"))


def test_whole_numbers_are_learned_as_numbers_where_the_loss_compares_numbers(cli: Command, tmp_path: Path) -> None:
    ages = np.arange(60) % 45 + 20
    write(tmp_path / "age.csv", of("a", "b", "c", "age", age=ages))
    words = ["data.name=folder", "data.path=age.csv", "data.label=age", "model.name=mlp", "rounds=1", "local.epochs=1"]
    settings = [part for word in (*words, "clients.total=2", "task.loss=mae") for part in ("--set", word)]
    done = cli("run", *settings, "--workers", "1", "--out", "run")
    assert done.code == 0, done.stderr
    assert open_model("run").header.classes == ("value",)
    for source in ([], ["--data", "age.csv"]):
        assert cli("model", "eval", "run", *source).stdout.startswith("loss "), source


def test_arrays_that_nobody_may_write_to_are_trained_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (60, 3), np.uint8), np.arange(60) % 2
    x.flags.writeable = y.flags.writeable = False
    fedpm.run("quickstart", **SMALL, clients={"total": 2}, data=fedpm.dataset((x, y), (x, y)))
    assert not recwarn.list


def test_a_model_of_other_inputs_is_told_by_its_inputs_alone(cli: Command, tmp_path: Path) -> None:
    write(tmp_path / "table.csv", TABLE)
    fedpm.run("quickstart", rounds=1, local={"epochs": 1}, model={"name": "mlp"}, workers=1, out="run")
    assert cli("model", "eval", "run", "--data", "table.csv").stderr == (
        "fedpm: table has inputs of shape (3,); the model takes (1, 8, 8): choose data that fit\n"
    )
