"""Data as they come: each client's own, by name, in whatever form it has them."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.data.lazy import Lazy
from fedpm.data.paths import of_path
from fedpm.engines.flower.deploy.settings import AppSettings
from fedpm.errors import ConfigError, DataError
from fedpm.experiment.build import build
from tests.command import Command, cli
from tests.experiment.test_loop import without_times
from tests.small import small_config, small_net

__all__ = ["cli"]

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
PAIR = (X, Y)


class Counted(TorchDataset[tuple[torch.Tensor, int]]):
    """A map-style data set that counts its reads."""

    def __init__(self, x: Array, y: Array) -> None:
        self.x, self.targets, self.reads = x, y.tolist(), 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        return torch.from_numpy(self.x[number]), self.targets[number]


class Unlabelled(Counted):
    """One that knows its labels only with its inputs."""

    def __init__(self, x: Array, y: Array) -> None:
        super().__init__(x, y)
        self.labels = self.targets
        del self.targets

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.x[number]), self.labels[number]


class Failing(Counted):
    """One of which an example cannot be read."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == 7:
            raise KeyError("gone")
        return super().__getitem__(number)


def write_table(path: Path, *, client: Array | None = None) -> Path:
    columns = {**{f"f{place}": X[:, place] for place in range(4)}, "label": Y}
    if client is not None:
        columns["client"] = client
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_images(path: Path, count: int = 6, size: int = 8) -> Path:
    for name, value in (("cat", 10), ("dog", 200)):
        (path / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((size, size), value + number, np.uint8)).save(path / name / f"{number}.png")
    return path


def saved(path: Path) -> Path:
    np.savez(path, x=X, y=Y)
    return path


@pytest.mark.parametrize(
    "source",
    [
        lambda path: PAIR,
        lambda path: (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
        lambda path: (X.tolist(), Y.tolist()),
        lambda path: TensorDataset(torch.tensor(X), torch.tensor(Y)),
        lambda path: Counted(X, Y),
        lambda path: Unlabelled(X, Y),
        lambda path: write_table(path / "table.csv"),
        lambda path: saved(path / "arrays.npz"),
        lambda path: {**{f"f{place}": X[:, place].tolist() for place in range(4)}, "label": Y.tolist()},
    ],
    ids=["arrays", "tensors", "lists", "TensorDataset", "Dataset", "no targets", "csv", "npz", "columns"],
)
def test_every_form_of_the_same_data_is_the_same(source: Any, tmp_path: Path) -> None:
    made = fedpm.federation({"oslo": source(tmp_path), "bergen": PAIR}, test=PAIR)
    assert made.clients == ("oslo", "bergen")
    for part in made.parts():
        shard = made.train.take(part)
        assert np.array_equal(np.asarray(shard.x), X)
        assert np.array_equal(shard.y, Y)
    assert made.train.x.dtype == np.float32


def test_a_torch_dataset_is_read_when_it_is_asked_for() -> None:
    source = Counted(X, Y)
    made = fedpm.federation([source, source], test=PAIR)
    before = source.reads
    assert isinstance(made.train.x, Lazy)
    part = made.train.take(made.parts()[1])
    assert source.reads == before
    assert np.array_equal(part.x[np.array([3, 1])], X[[3, 1]])
    assert source.reads == before + 2
    assert np.array_equal(part.x[4], X[4])
    assert part.x[4, 1] == X[4, 1]
    assert np.array_equal(part.x[:3, 1], X[:3, 1])
    assert np.array_equal(pickle.loads(pickle.dumps(part)).x[:], X)  # noqa: S301 - as on the way to a worker


def test_labels_are_those_that_a_dataset_transforms() -> None:
    class Turned(Counted):
        def target_transform(self, label: int) -> int:
            return 2 - label

        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            x, label = super().__getitem__(number)
            return x, self.target_transform(label)

    assert np.array_equal(fedpm.federation([Turned(X, Y)], test=PAIR).train.y, 2 - Y)


def test_lazy_data_train_to_the_same_bytes_as_arrays(data: Dataset, tmp_path: Path) -> None:
    held = data.test.x[:50], data.test.y[:50]
    pairs = {
        name: (data.train.x[at], data.train.y[at]) for name, at in (("oslo", slice(60)), ("bergen", slice(60, 90)))
    }
    folders: list[Path] = []
    for kind in (lambda x, y: (x, y), Counted):
        given = fedpm.federation({name: kind(*pair) for name, pair in pairs.items()}, test=held, validation=held)
        out = tmp_path / str(len(folders))
        settings = small_config(rounds=2, data={}, clients={"total": 7})
        result = fedpm.run(settings, net=small_net(), data=given, out=out)
        assert result.rounds[0]["names"] == ["oslo", "bergen"]
        folders.append(out)
    assert without_times(folders[0]) == without_times(folders[1])
    assert (folders[0] / "model.fedpm").read_bytes() == (folders[1] / "model.fedpm").read_bytes()
    assert '"names"' in (folders[0] / "clients.json").read_text()
    config = fedpm.load_config(folders[0] / "config.toml")
    assert (config.clients.total, config.data.split) == (2, "given")
    longer = fedpm.resume(folders[1], net=small_net(), data=given, rounds=3)
    assert len(longer.rounds) == 3


def test_shares_are_cut_from_each_client() -> None:
    made = fedpm.federation({"oslo": PAIR, "bergen": (X[:10], Y[:10])}, test=0.2, validation=0.1)
    assert [len(part) for part in made.parts()] == [22, 7]  # of 24 and 8
    assert made.validation is not None
    assert (len(made.test), len(made.validation)) == (8, 3)
    rows = np.concatenate([np.asarray(shard.x) for shard in (made.train, made.test, made.validation)])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, [*X.tolist(), *X[:10].tolist()]))


def test_labels_may_be_words_or_truth_values() -> None:
    words = np.array(["cat", "dog", "ant"])[Y]
    made = fedpm.federation({"a": (X, words), "b": (X, words.astype(object))}, test=(X, words))
    assert made.classes == ("ant", "cat", "dog")
    assert np.array_equal(made.train.y, np.tile(np.array([1, 2, 0])[Y], 2))
    assert fedpm.dataset((X, Y > 0), (X, Y > 0)).classes == ("False", "True")


def test_a_place_of_a_fleet_has_its_own_data() -> None:
    made = fedpm.federation({"oslo": PAIR, "bergen": (X[:10], Y[:10])}, test=PAIR, validation=(X[:5], Y[:5]))
    assert len(made.at(1).train) == 10
    assert len(made.at(None).train) == 5
    with pytest.raises(DataError, match="client 2: there are 2 clients"):
        made.at(2)
    with pytest.raises(DataError, match=r"there are 2 clients in your data, and one place"):
        fedpm.run(small_config(), net=small_net(), data=made, remote=True)


HOOK = """import numpy as np
import fedpm

def load(client):
    x, y = np.arange(30, dtype=np.float32)[:, None], np.arange(30) % 3
    return fedpm.federation({"oslo": (x[:20], y[:20]), "bergen": (x[20:], y[20:])}, test=(x, y), validation=(x, y))
"""


def test_a_hook_of_a_fleet_may_return_the_whole_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospitals.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    settings = AppSettings(small_config(), "out", data="hospitals:load")
    held = [settings.hooks(client)["data"] for client in (0, 1, None)]
    assert [len(place.train) for place in held] == [20, 10, 30]
    assert held[1].train.x[0, 0] == 20


def spoilt(value: float) -> Array:
    x = X.copy()
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (([[1.0], [1.0, 2.0]], [0, 1]), "client oslo: inputs differ in length; bring"),
        ((X[:0], Y[:0]), "client oslo: 0 inputs and 0 labels"),
        ((X, Y[:9]), "client oslo: 30 inputs and 9 labels"),
        ((spoilt(np.nan), Y), "client oslo: inputs hold NaN or infinite values, the first (nan) in input 7"),
        ((X[:, :3], Y), "client oslo: an input is float32 of shape (3,), and at client bergen float32 of shape (4,)"),
        (
            (X, Y - 1),
            "client oslo: a label is -1; classes should be numbered 0, 1, …; if labels are quantities, give y.ast",
        ),
        (0.2, "client oslo: 0.2 is a share, and only fedpm.federation takes one"),
        ((X, Y / 2), "client oslo: labels are numbers, and those of client bergen integers"),
        ((X, Y + 0j), "client oslo: labels should be integers from 0, words, truth values or numbers"),
        ((X, np.where(Y == 1, np.nan, Y)), "client oslo: label 1 holds NaN or infinite values"),
        ((X, np.stack([Y, Y], 1)), "client oslo: labels are several of shape (2,), and those of client bergen int"),
        ((X, Y.astype(str)), "client oslo: labels are words, and those of client bergen integers"),
        (Counted(spoilt(np.inf), Y), "client oslo: input 7 holds NaN or infinite"),
        (Counted(X[:0], Y[:0]), "client oslo: 0 examples"),
        (None, "client oslo: a NoneType holds no examples"),
        ("nowhere.csv", "client oslo: nowhere.csv: there is no such file or folder"),
        ("nowhere.npz", "client oslo: nowhere.npz: there is no such file"),
        ("nowhere", "client oslo: nowhere is neither"),
        ((X, Y * 10**12), "client oslo: a label is 2000000000000; labels should be integers from 0, one a class"),
        ((X, [None, *Y[1:].tolist()]), "client oslo: labels should be integers from 0, words, truth values or numbers"),
        ((X + 1j, Y), "client oslo: inputs should be an array of numbers, and are complex64 of shape (30, 4); encode"),
        ((np.ma.masked_array(X, X > 0), Y), "client oslo: inputs hold masked values; fill them or leave them out"),
        ((torch.tensor(X).to_sparse(), Y), "client oslo: inputs are no array (can't convert Sparse layout"),
        (Counted(X.astype(str), Y), "client oslo: example 0 cannot be read (TypeError: "),
        (Failing(X, Y), "client oslo: example 7 cannot be read (KeyError: 'gone'); mend the Dataset, or leave it out"),
        ({"a": [1, 2], "b": [1], "label": [0, 1]}, "client oslo: columns differ in length (a 2, b 1, label 2)"),
        ({"day": X[:, 0].astype("datetime64[s]"), "label": Y}, "client oslo: column 'day' holds datetime64[s]; inputs"),
    ],
)
def test_what_is_wrong_is_said_with_the_client(source: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        np.asarray(fedpm.federation({"bergen": PAIR, "oslo": source}, test=PAIR).train.x)


def test_a_file_that_is_wrong_is_said_with_the_client(tmp_path: Path) -> None:
    for name, content, sentence in (
        ("garbage.npz", b"no arrays", r"client oslo: .*garbage.npz: not readable as arrays of numbers"),
        ("twice.csv", b"a,a,label\n1,2,0\n3,4,1\n", r"client oslo: two columns have the name 'a'"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=sentence):
            fedpm.federation({"bergen": PAIR, "oslo": tmp_path / name}, test=PAIR)


def test_truth_values_and_short_floats_are_inputs_too() -> None:
    on = X > 0
    assert fedpm.federation([(on, Y), Counted(on, Y)], test=(on, Y)).train.x[:].dtype == np.float32
    short = torch.tensor(on).bfloat16()
    assert np.array_equal(fedpm.federation([(short, Y)], test=(on, Y)).train.x, on)


def test_impossible_federations_are_refused() -> None:
    with pytest.raises(DataError, match="no clients"):
        fedpm.federation({})
    with pytest.raises(DataError, match="clients 1, '1': two have one name"):
        fedpm.federation({1: PAIR, "1": PAIR})
    with pytest.raises(DataError, match="no client has examples enough"):
        fedpm.federation([(X[:2], Y[:2])], test=0.1)
    with pytest.raises(DataError, match=r"test = None: there should be something"):
        fedpm.federation([PAIR], test=None)
    with pytest.raises(DataError, match=r"test = 1.5: a share"):
        fedpm.federation([PAIR], test=1.5)
    with pytest.raises(DataError, match="classes: 'a' is there twice"):
        fedpm.federation([PAIR], test=PAIR, classes=("a", "b", "a"))
    assert len(fedpm.federation([PAIR], test=np.float32(0.1)).test) == 3
    given = fedpm.federation([PAIR, PAIR], test=PAIR)
    with pytest.raises(ConfigError, match=r"clients.sampled = 3: there are 2 clients in your data"):
        fedpm.run(small_config(clients={"total": 4, "sampled": 3}), net=small_net(), data=given)
    with pytest.raises(ConfigError, match=r"clients.total = 5: there are 2 clients in your data"):
        fedpm.run(small_config(data={}), net=torch.nn.Linear(4, 3), data=given, clients={"total": 5})


def test_a_table_names_its_clients(tmp_path: Path) -> None:
    owners = np.array(["oslo", "bergen"])[np.arange(30) % 2]
    made = fedpm.federation(write_table(tmp_path / "all.csv", client=owners), test=PAIR)
    assert made.clients == ("oslo", "bergen")
    assert np.array_equal(np.asarray(made.train.x)[:15], X[::2])
    with pytest.raises(DataError, match=r"no column 'client'; there are: f0"):
        fedpm.federation(write_table(tmp_path / "none.csv"))


def test_a_pandas_table_is_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    owners = np.array(["oslo", "bergen"])[np.arange(30) % 2]
    file = write_table(tmp_path / "all.csv", client=owners)
    frame = pandas.read_csv(file)
    frame["label"] = frame["label"].map({0: "ant", 1: "bee", 2: "cat"}).astype("category")
    made, read = fedpm.federation(frame, test=0.2), fedpm.federation(file, test=0.2)
    assert (made.clients, made.classes) == (read.clients, ("ant", "bee", "cat"))
    assert np.array_equal(made.train.x, read.train.x)
    assert np.array_equal(made.train.y, read.train.y)
    frame["ward"] = "west"
    with pytest.raises(DataError, match="client oslo: column 'ward' holds 'west' in the row of index 0; inputs"):
        fedpm.federation(frame)
    frame["label"] = frame["label"].where(frame.index != 4)
    with pytest.raises(DataError, match="client oslo: label 2 is nan, and others are words; fill it, or leave it out"):
        fedpm.federation(frame.drop(columns="ward"))


def test_images_lie_in_folders_of_clients_and_classes(tmp_path: Path) -> None:
    for name in ("oslo", "bergen", "test"):
        write_images(tmp_path / name)
    made = of_path(tmp_path)
    assert isinstance(made, fedpm.Federation)
    assert (made.clients, made.classes, made.input_shape) == (("bergen", "oslo"), ("cat", "dog"), (1, 8, 8))
    assert np.asarray(made.train.x)[[0, 6], 0, 0, 0].tolist() == [10, 200]
    assert len(made.test) == 12
    Image.new("L", (9, 8)).save(tmp_path / "oslo" / "dog" / "wide.png")
    with pytest.raises(DataError, match=r"client oslo: .*wide.png is uint8 of shape \(1, 8, 9\), and the first"):
        np.asarray(of_path(tmp_path).train.x)
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "oslo" / "dog" / "wide.png")
    with pytest.raises(DataError, match=r"wide.png has more than 8 bits a pixel \(I(;16)?\); save it with 8 bits"):
        np.asarray(of_path(tmp_path).train.x)
    (tmp_path / "oslo" / "dog" / "wide.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"client oslo: .*wide.png cannot be read as an image"):
        np.asarray(of_path(tmp_path).train.x)
    write_images(tmp_path / "narvik", size=9)
    with pytest.raises(DataError, match=r"client narvik: an input is uint8 of shape \(1, 9, 9\), and at client bergen"):
        of_path(tmp_path)


def test_a_folder_test_beside_those_of_clients_is_tested_on(tmp_path: Path) -> None:
    for name, count in (("oslo", 10), ("bergen", 10), ("test", 6)):
        write_images(tmp_path / name, count)
    made, read = fedpm.federation(str(tmp_path)), fedpm.load_dataset(tmp_path)
    assert (made.clients, len(made.train), len(made.test), made.test_owner) == (("bergen", "oslo"), 40, 12, None)
    assert np.array_equal(made.test.x, read.test.x)
    for test in (0.2, tmp_path / "test"):
        with pytest.raises(DataError, match=r"holds a folder test already; leave out test=…, or that folder"):
            fedpm.federation(tmp_path, test=test)


def test_folders_train_and_test_are_a_data_set_to_split(tmp_path: Path) -> None:
    for name, count in (("train", 10), ("test", 6)):
        write_images(tmp_path / name, count)
    made = fedpm.load_dataset(tmp_path)
    assert type(made) is Dataset
    assert (made.name, made.classes, len(made.train), len(made.test)) == (tmp_path.name, ("cat", "dog"), 20, 12)
    with pytest.raises(DataError, match=r"the folders train and test, and none of clients; give fedpm.load_dataset\("):
        fedpm.federation(tmp_path)
    write_images(tmp_path / "oslo")
    assert fedpm.federation(tmp_path).clients == ("oslo", "train")


def test_a_federation_of_one_client_is_told_in_the_singular(tmp_path: Path) -> None:
    write_images(tmp_path / "images" / "oslo", 20)
    settings = {"name": "folder", "path": str(tmp_path / "images")}
    with pytest.warns(UserWarning, match="images says which of 1 client has which example, and data.split = 'iid'"):
        build(small_config(clients={"total": 2}, data=settings, model={"name": "mlp"}))


def test_data_are_shown_in_one_short_line(tmp_path: Path) -> None:
    for name in ("oslo", "bergen"):
        write_images(tmp_path / name, 10)
    made = fedpm.federation(tmp_path, name="pets")
    assert repr(made) == "<fedpm.Federation: pets, 2 clients, 36 examples to train on, 4 to test on, 2 classes>"
    assert repr(made.train) == "<fedpm.Shard: 36 examples, inputs uint8 of shape (1, 8, 8)>"
    told = "<fedpm.Dataset: own, 30 examples to train on, 30 to test on, "
    assert repr(fedpm.dataset(PAIR, PAIR)) == f"{told}3 classes>"
    assert repr(fedpm.dataset((X, X[:, 0]), (X, X[:, 0]))) == f"{told}labels float32>"
    crowd = fedpm.on_demand(lambda client: PAIR, 5000, validation=PAIR, test=PAIR)
    words = "own, 5,000 clients that are loaded on demand, 30 examples to test on, 3 classes"
    assert repr(crowd) == f"<fedpm.OnDemand: {words}>"


def test_the_help_of_a_data_set_names_what_is_read_and_that_there_has_to_be_a_test() -> None:
    told = fedpm.dataset.__doc__ or ""
    assert all(form in told for form in ("``(inputs, labels)``", "torch", "pandas", ".csv", ".npz", "class/*.png"))
    assert re.search(r"test: .* has to be given", told)


def test_files_that_name_no_clients_are_a_data_set_to_split(tmp_path: Path) -> None:
    for made in (of_path(write_images(tmp_path / "images", count=10)), of_path(write_table(tmp_path / "table.csv"))):
        assert type(made) is Dataset
        assert len(made.test) * 9 == len(made.train)
    write_images(tmp_path / "images" / "test")
    with pytest.raises(DataError, match="and a folder test; put the others into client folders"):
        of_path(tmp_path / "images")


def test_images_without_folders_are_told_where_to_lie(tmp_path: Path) -> None:
    write_images(tmp_path / "all")
    loose = tmp_path / "all" / "cat"
    for where, read in (("data.path", lambda: of_path(loose)), ("client 0", lambda: fedpm.federation([loose]))):
        with pytest.raises(DataError, match=rf"{where}: .*cat holds 0.png and no folder .*: class/\*.png, for several"):
            read()


def test_what_is_given_in_place_of_data_is_told_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data: 'all.csv' is a path; read it first: data=fedpm.federation\('all.csv'\)"
    ):
        fedpm.run(data="all.csv")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"test: there should be something to report on, .* test=\(inputs, labels\)\)"):
        fedpm.dataset(train=PAIR)


def test_an_array_names_the_client_of_each_example(tmp_path: Path) -> None:
    owners = np.array([7, 3])[np.arange(30) % 2]
    np.savez(tmp_path / "all.npz", train_x=X, train_y=Y, test_x=X, test_y=Y, client=owners)
    made = of_path(tmp_path)
    assert isinstance(made, fedpm.Federation)
    assert made.clients == ("7", "3")
    assert np.array_equal(made.train.take(made.parts()[1]).x, X[1::2])
    np.savez(tmp_path / "all.npz", train_x=X, train_y=Y, test_x=X, test_y=Y, client=owners[:9])
    with pytest.raises(DataError, match=r"30 inputs, 30 labels and clients of shape \(9,\)"):
        of_path(tmp_path)


def test_the_command_line_takes_clients_as_given(cli: Command, tmp_path: Path) -> None:
    for name in ("oslo", "bergen"):
        write_images(tmp_path / "images" / name, count=10)
    given = ["--set", "data.name=folder", "--set", "data.path=images", "--set", "data.split=given", "--set", "rounds=1"]
    small = ["--set", "model.name=conv4-slim", "--set", "local.epochs=1", "--set", "workers=1"]
    done = cli("run", *given, *small, "--out", "run")
    assert done.code == 0, done.stderr
    assert '"names": ["bergen", "oslo"]' in (tmp_path / "run" / "rounds.jsonl").read_text()
    owners = np.array(["oslo", "bergen"])[np.arange(30) % 2]
    write_table(tmp_path / "table.csv", client=owners)
    table = ["--set", "data.path=table.csv", "--set", "model.name=mlp"]
    for name, task in (("classes", []), ("numbers", ["--set", "task.loss=mse"])):
        done = cli("run", *given, *small, *table, *task, "--out", name)
        assert done.code == 0, done.stderr
        assert '"names": ["oslo", "bergen"]' in (tmp_path / name / "rounds.jsonl").read_text()
        judged = cli("model", "eval", name)
        assert re.search(r"on the test part of table, \d+ examples\n$", judged.stdout), judged.stderr
        (tmp_path / "table.csv").write_text(
            re.sub(r",([012]),(?=[ob])", r",\1.5,", (tmp_path / "table.csv").read_text())
        )
    (tmp_path / "numbers" / "model.fedpm").rename(tmp_path / "alone.fedpm")
    assert (
        "trained on data of your own; say where they are with --data PATH" in cli("model", "eval", "alone.fedpm").stderr
    )
    missing = cli("run", *given, "--set", "data.path=nowhere.csv").stderr
    assert "data.path = 'nowhere.csv': there is no such file" in missing
    shown = cli("data", "show", "images", "--split", "given")
    assert "client oslo: 18 = cat:" in shown.stdout, shown.stdout + shown.stderr
    refused = cli("run", "--set", "data.split=given", "--out", "other")
    assert refused.code != 0
    assert "nothing in digits says which client has which example" in refused.stderr
