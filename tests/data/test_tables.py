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
    usual, other = (cli("model", "eval", "run", "--data", f"{name}.csv").stdout for name in ("table", "other"))
    assert usual.split(" on ")[0] == other.split(" on ")[0] != ""
    done = cli("model", "eval", "run", "--data", "less.csv")
    assert (done.code, done.stderr) == (
        1,
        "fedpm: less: lacks the column 'b' of the model; give it the same columns\n",
    )


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
