"""App folders, their settings and hooks, keys, and commands that are used wrongly."""

import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from examples.fleet import FEDPM

from fedpm import config as configs
from fedpm.cli import main
from fedpm.engines.flower.deploy.folder import init
from fedpm.engines.flower.deploy.settings import AppSettings
from fedpm.errors import ConfigError, EngineError
from fedpm.experiment.folder import RunFolder

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = pytest.mark.flower

from flwr.cli.config_utils import load_and_validate  # noqa: E402
from flwr.common.config import flatten_dict  # noqa: E402

from fedpm.engines.flower.deploy.server import check_continues  # noqa: E402


def run_config(folder: Path) -> dict[str, object]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    return dict(flatten_dict(project["tool"]["flwr"]["app"]["config"]))


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def fedpm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process and in an empty folder; return its exit code and what it says of errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedpm", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def app(tmp_path: Path) -> Path:
    init(tmp_path / "My App", configs.load("quickstart", ["rounds=4", "data.split=dirichlet", "data.alpha=1"]))
    return tmp_path / "My App"


def test_flower_accepts_the_folder(app: Path) -> None:
    project, warnings = load_and_validate(app / "pyproject.toml")
    assert project["project"]["name"] == "my-app"
    assert warnings == []


def test_settings_come_back_as_they_were_written(app: Path) -> None:
    settings = AppSettings.read(run_config(app))
    wanted = ["rounds=4", "data.split=dirichlet", "data.alpha=1", "engine=flower"]
    assert settings.config == configs.load("quickstart", wanted)
    assert settings.out == "runs/my-app"


def test_a_node_says_itself_where_its_data_are_and_nothing_else(app: Path) -> None:
    node = {"partition-id": 0, "data.dir": "/data", "rounds": 9, "local.lr": 5.0}
    settings = AppSettings.read(run_config(app), node)
    assert settings.config.data.dir == "/data"
    assert settings.config.rounds == 4
    assert settings.config.local.lr == "auto"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"app.out": ""}, "should give out"),
        ({"app.nonsense": 1}, "nonsense"),
        ({"rounds": "many"}, "rounds = 'many'"),
        ({"app.network": "nowhere:network"}, "should be MODULE:FUNCTION"),
        ({"app.network": "math:pi_"}, "should be MODULE:FUNCTION"),
        ({"app.network": "os:getcwd"}, "gave a str; it should give a Module"),
        ({"app.data": "os:strerror"}, "app.data"),
    ],
)
def test_wrong_settings_are_one_clear_sentence(app: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=words if "data" not in words else "Dataset|int"):
        AppSettings.read({**run_config(app), **change}).hooks(None)


def test_a_fleet_draws_its_noise_in_secret_or_promises_no_privacy(app: Path) -> None:
    private = {**run_config(app), "privacy.unit": "example", "privacy.epsilon": 8.0}
    assert AppSettings.read({**private, "privacy.secret": True}).config.privacy.unit == "example"
    with pytest.raises(ConfigError, match=r"^privacy\.secret = false: the server of a fleet knows the seed"):
        AppSettings.read({**private, "privacy.secret": False})


def test_a_run_is_continued_unless_its_results_would_change(app: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", run_config(app)
    RunFolder.create(folder, AppSettings.read(settings).build(None).config_toml).close()
    for key, value in {"tensorboard": True, "flower.deadline": 5.0, "data.dir": str(tmp_path), "workers": 3}.items():
        check_continues(AppSettings.read({**settings, key: value}), folder)
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(local\.epochs, rounds\)"):
        check_continues(AppSettings.read({**settings, "rounds": 5, "local.epochs": 9}), folder)


def test_the_hooks_of_the_template_train(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(app))
    hooks = {"app.network": "model:network", "app.data": "data:load", "clients.total": 3, "data.split": "iid"}
    run = {key: value for key, value in run_config(app).items() if key != "data.alpha"}
    settings = AppSettings.read({**run, **hooks})
    server, client = settings.build(None), settings.build(2)
    assert len(client.clients.parts[2]) == len(client.clients.train) == len(client.dataset.train)
    assert len(server.validation) == len(server.dataset.train), "the server chooses on all it has"
    assert server.method.network.fingerprint(0) == client.method.network.fingerprint(0)
    for module in ("model", "data"):
        sys.modules.pop(module)


def test_keys_are_kept_from_others(tmp_path: Path, fedpm: Command) -> None:
    code, errors = fedpm("flower", "certificates", "keys", "--nodes", "1", "--host", "superlink.example")
    assert code == 0, errors
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    assert modes == {
        "ca.pem": 0o644, "server.pem": 0o644, "server.key": 0o600, "node-0": 0o600, "node-0.pub": 0o644,
    }  # fmt: skip
    code, errors = fedpm("flower", "certificates", "keys")
    assert code == 1
    assert "keys are never overwritten" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["init", "full"], 1, "exists and is not empty"),
        (["init", "x", "--set", "nonsense=1"], 2, "unknown key"),
        (["run", "full"], 2, "not an app folder"),
        (["run", "app", "--set", "rounds"], 2, "should be KEY=VALUE"),
        (["run", "app", "nowhere"], 1, "flwr run failed: "),
        (["gate", "--listen", "x", "--superlink", "h:1", "--keys", "k"], 2, "should be HOST:PORT"),
        (["gate", "--listen", "h:1", "--superlink", "h:1", "--keys", "k"], 2, "has no ca.pem, server.pem, server.key"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(
    arguments: list[str], code: int, words: str, tmp_path: Path, fedpm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    if arguments[:2] == ["run", "app"]:
        init(tmp_path / "app", configs.load("quickstart"))
    exit_code, errors = fedpm("flower", *arguments)
    assert exit_code == code, errors
    assert errors.startswith("fedpm: ")
    assert words in errors


def test_flowers_own_commands_are_quiet_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpm.engines.flower.environment import quiet

    monkeypatch.setenv("NO_PROXY", "example.org")
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    environment = quiet()
    assert (environment["FLWR_TELEMETRY_ENABLED"], environment["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert environment["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    assert quiet()["FLWR_TELEMETRY_ENABLED"] == "1"
    shown = subprocess.run([FEDPM, "flower", "flwr", "--version"], capture_output=True, text=True, timeout=300)
    assert "1.41" in shown.stdout


def test_without_flower_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpm.engines.flower import environment

    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install 'fedpm\[flower\]'"):
        environment.require_flower()
