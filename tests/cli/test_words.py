"""What is typed: completed by Tab, mended when mistyped, and shown on narrow terminals."""

import os
import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedpm import config as configs
from fedpm.experiment.progress import round_progress
from tests.command import FEDPM, fedpm

RECORD: Any = {
    "round": 107,
    "clients": [],
    "accuracy": 0.9749,
    "uplink_bpp": 0.124,
    "downlink_bpp": 0.856,
    "rejected": {},
}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run --rounds 5", "--rounds: settings are given with --set: --set rounds=5"),
        ("run --round=5", "--round: settings are given with --set: --set rounds=5"),
        ("run --batch-size 7 --out x", "--batch-size: settings are given with --set: --set local.batch_size=7"),
        ("run --learning-rate 0.1", "--learning-rate: settings are given with --set: --set local.lr=0.1"),
        ("run --clients.rho 0.5", "--clients.rho: settings are given with --set: --set clients.rho=0.5"),
        ("run --tensorboard", "--tensorboard: settings are given with --set: --set tensorboard=VALUE"),
        ("run --name x", "--name: settings are given with --set: --set data.name=x or --set model.name=x"),
        ("study run coders --rounds 5", "--rounds: settings are given with --set: --set rounds=5"),
        (
            "run --net net:make",
            "--net: a network of your own is trained from Python: fedpm.run(net=…), docs/networks.md",
        ),
        ("privacy account --epochs 2", "--epochs: settings are given with --set: --set local.epochs=2"),
    ],
)
def test_a_key_given_as_an_option_is_shown_with_set(words: str, sentence: str) -> None:
    done = fedpm(*words.split())
    assert (done.code, done.stdout, done.stderr) == (2, "", f"fedpm: {sentence}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run --set rounds 5", "--set rounds 5: should be one word, KEY=VALUE: --set rounds=5"),
        ("run --set rounds = 5", "--set rounds =: should be one word, KEY=VALUE: --set rounds=5"),
        ("run --set rounds =5", "--set rounds =5: should be one word, KEY=VALUE: --set rounds=5"),
        ("run --set rounds= 5", "--set rounds= 5: should be one word, KEY=VALUE: --set rounds=5"),
        ("run --set rounds=5 workers=1", "workers=1: settings are given with --set: --set workers=1"),
        ("run --set local..epochs=3", "--set local..epochs=3: a dot too many; did you mean local.epochs=3?"),
        ("run --set .rounds=1", "--set .rounds=1: a dot too many; did you mean rounds=1?"),
        ("run quickstart", "quickstart: a preset is named with --preset: --preset quickstart"),
        (
            "run --out x mnist",
            "mnist: belongs to no option; settings are --set KEY=VALUE, and --help lists the options",
        ),
    ],
)
def test_a_word_of_no_option_is_told_how_it_was_meant(words: str, sentence: str) -> None:
    done = fedpm(*words.split())
    assert (done.code, done.stdout, done.stderr) == (2, "", f"fedpm: {sentence}\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rnu", "there is no such command; did you mean run?"),
        ("trian", "there is no such command; did you mean run?"),
        ("evaluate", "there is no such command; did you mean model eval?"),
        ("data shwo", "there is no such command; did you mean show?"),
        ("run --preset quikstart", "there is no such preset; did you mean quickstart?"),
        ("study run codres", "there is no such study; did you mean coders?"),
        ("data show minst", "neither a folder, a file nor a data set; did you mean mnist?"),
        ("keys locl", "no key begins so; did you mean local?"),
        ("run --preste x", "Did you mean"),
    ],
)
def test_a_suggestion_is_made_once(words: str, meant: str) -> None:
    done = fedpm(*words.split())
    assert done.code in (1, 2)
    assert meant in done.stderr
    assert done.stderr.lower().count("did you mean") == 1


def test_a_device_that_is_not_here_is_one_short_sentence(tmp_path: Path) -> None:
    for device in ("mps", "gpu"):
        done = fedpm("run", "--device", device, cwd=tmp_path)
        remedy = "auto and cpu always work, and GPUs are cuda and mps"
        assert done.stderr == f"fedpm: device = '{device}': cannot be used here; {remedy}\n"


def test_the_help_of_a_run_is_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = fedpm("run", "--help").stdout
    assert len(shown.splitlines()) <= 40
    for word in ("quickstart", "relative-entropy", "--resume", "fedpm keys"):
        assert word in shown


def test_keys_are_a_table_of_all_or_of_some() -> None:
    rows = [line.split() for line in fedpm("keys").stdout.splitlines() if re.match(r"[a-z]", line)]
    assert [row[0] for row in rows[1:]] == [key for key, _, _ in configs.describe()]
    (head, row) = fedpm("keys", "local.batch").stdout.splitlines()
    assert head.split() == ["key", "default", "meaning"]
    assert re.fullmatch(r"local.batch_size +128 +examples in a minibatch, at most *", row)
    assert "fedmask: " in fedpm("keys", "algorithm").stdout
    (_, row, *_) = fedpm("keys", "epochs").stdout.splitlines()
    assert row.startswith("local.epochs ")
    start = "\n\nWithout --preset and --config, fedpm run starts from the preset quickstart: local.epochs = 10"
    assert fedpm("keys", "local").stdout.endswith(f"{start}\n")
    assert f"{start}, fedpm.effort = bits\n" in fedpm("keys").stdout
    (head, row) = fedpm("keys", "fedpm.", "--preset", "quickstart").stdout.splitlines()[:2]
    assert head.split() == ["key", "quickstart", "meaning"]
    assert row.split()[:2] == ["fedpm.effort", "bits"]


def test_who_asks_for_epsilon_is_shown_that_of_privacy_alone() -> None:
    assert fedpm("run", "--epsilon", "8").stderr == (
        "fedpm: --epsilon: settings are given with --set: --set privacy.epsilon=8\n"
    )


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("keys", "begin so"),
        ("model inspect", "run folder"),
        ("data get", "fedpm data list"),
        ("flower init", "app folder"),
    ],
)
def test_help_says_what_an_argument_is(command: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert word in fedpm(*command.split(), "--help").stdout


def test_help_keeps_its_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert "between c and 1 − c" in fedpm("privacy", "curve", "--help").stdout


COMPLETIONS = [
    ("fedpm ru", {"run"}),
    ("fedpm run --preset qui", {"quickstart"}),
    ("fedpm run --set local.e", {"local.epochs="}),
    ("fedpm run --res", {"--resume"}),
    ("fedpm keys priv", {"privacy", "privacy.unit", "privacy.delta"}),
    ("fedpm data get fash", {"fashion-mnist"}),
    ("fedpm study run co", {"coders"}),
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_offers_what_fits(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FEDPM_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    for line, wanted in COMPLETIONS:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)  # zsh and fish
        monkeypatch.setenv("COMP_WORDS", line.replace(" ", "\n"))  # bash
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        offered = set(re.findall(r"[\w.=-]+", fedpm().stdout))
        assert wanted <= offered, line
        assert not {"quickstart", "--preset", "coders"} - wanted & offered


BASH = """
source <(_FEDPM_COMPLETE=source_bash fedpm)
COMP_WORDS=({line}); COMP_CWORD=$(({words} - 1))
_fedpm_completion fedpm; echo "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ :; }}; _arguments() {{ print -l -- ${{@}}; }}  # what zsh's own completion would be called with
source <(_FEDPM_COMPLETE=source_zsh fedpm)
words=({line}); CURRENT={words}
_fedpm_completion
"""
FISH = '_FEDPM_COMPLETE=source_fish fedpm | source; complete -C "{line}"'


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)])
def test_shells_complete_with_what_the_program_tells_them(shell: str, script: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: its completion was driven without it")
    environment = {**os.environ, "PATH": f"{Path(FEDPM).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    line = "fedpm run --preset qui"
    code = script.format(line=line, words=len(line.split()))
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert re.search(r"\bquickstart\b", done.stdout), done.stderr
    assert "cifar" not in done.stdout


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40, 30])
def test_a_narrow_bar_keeps_round_and_time(width: int) -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=width, color_system=None)
    with round_progress(200, wanted=True, console=console) as show:
        show(RECORD)
    line = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", text.getvalue()).replace("\r", "\n").splitlines()[-1]
    assert re.match(r"round 107/200 ", line)
    assert re.search(r" [-\d]+:[-\d]+:[-\d]+$", line)
    assert len(line) <= width
    assert ("━" in line or "╸" in line) == (width >= 80)
    assert ("down 0.856 bpp" in line) == (width >= 80)
