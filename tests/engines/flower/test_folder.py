"""App folders, their settings and hooks, keys, and commands that are used wrongly."""

import os
import ssl
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from examples.fleet import FEDPM

from fedpm import config as configs
from fedpm.cli import main
from fedpm.engines.flower.deploy.folder import init
from fedpm.engines.flower.deploy.settings import AppSettings
from fedpm.errors import ConfigError, EngineError
from fedpm.experiment.folder import RunFolder
from tests.privacy.attack import explained

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = pytest.mark.flower

from flwr.cli.config_utils import load_and_validate  # noqa: E402
from flwr.common.config import flatten_dict  # noqa: E402
from flwr.supercore.utils import get_flwr_home  # noqa: E402

from fedpm.engines.flower.deploy import certificates, nodes  # noqa: E402
from fedpm.engines.flower.deploy.commands import keep_database_private  # noqa: E402
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
    wanted = ["rounds=4", "data.split=dirichlet", "data.alpha=1", "engine=flower", "privacy.secret=true"]
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
        ({"app.network": "nowhere:network"}, "there is no module nowhere here"),
        ({"app.network": "math:pi_"}, "math has no 'pi_'; did you mean pi"),
        ({"app.network": "os:getcwd"}, "gave .*; it should give a Module"),
        ({"app.data": "os:strerror"}, "app.data"),
    ],
)
def test_wrong_settings_are_one_clear_sentence(app: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=words if "data" not in words else "Dataset|int"):
        AppSettings.read({**run_config(app), **change}).hooks(None)


def test_a_fleet_draws_its_noise_in_secret_or_promises_no_privacy(app: Path) -> None:
    private = {**run_config(app), "privacy.unit": "example", "privacy.epsilon": 8.0}
    for secret in (True, "auto"):
        assert AppSettings.read({**private, "privacy.secret": secret}).config.privacy.secret is True
    with pytest.raises(ConfigError, match=r"^privacy\.secret = false: the server of a fleet knows the seed"):
        AppSettings.read({**private, "privacy.secret": False})


def test_a_fleets_server_cannot_recompute_what_clients_drew_unless_told_so(app: Path) -> None:
    small = {"model.name": "conv4-slim", "model.init": "kaiming", "local.epochs": 1, "data.train_examples": 100}
    settings = {**run_config(app), **small, "codec": "side-information"}
    assert settings["privacy.secret"] == "auto", "Flower lets a run replace only what stands in the app"
    assert explained(AppSettings.read(settings).build(0))[0] < 0.8
    assert explained(AppSettings.read({**settings, "privacy.secret": False}).build(0))[0] == 1


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


def test_certificates_pass_the_strict_checks_of_newer_pythons(tmp_path: Path) -> None:
    certificates.make(tmp_path / "keys", ["superlink.example", "127.0.0.1"], nodes=0, days=1)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "keys/server.pem", tmp_path / "keys/server.key")
    client = ssl.create_default_context(cafile=tmp_path / "keys/ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname="127.0.0.1"), server.wrap_bio(up, down, server_side=True)]
    for end in ends * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert ends[0].getpeercert(), "the handshake is done"


def test_keys_are_nobody_elses_from_their_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, fsync = [], os.fsync

    def look(file: int) -> None:
        modes.append(stat.filemode(os.fstat(file).st_mode))
        fsync(file)

    monkeypatch.setattr(os, "fsync", look)
    certificates.make(tmp_path / "keys", ["localhost"], nodes=1, days=1)
    public, private = "-rw-r--r--", "-rw-------"
    assert [mode for mode in modes if mode.startswith("-")] == [public, public, private, private, public]
    assert "drwx------" in modes


@pytest.mark.parametrize("option", [["--database", "superlink.db"], ["--database=sqlite:///superlink.db"], []])
def test_the_database_of_a_superlink_is_nobody_elses(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep_database_private(["--port", "1", *option])
    assert [(file.name, stat.filemode(file.stat().st_mode)) for file in tmp_path.iterdir()] == (
        [("superlink.db", "-rw-------")] if option else []
    )
    if option:
        (tmp_path / "superlink.db").chmod(0o644)
        (tmp_path / "superlink.db").write_bytes(b"content")
        keep_database_private(option)
        assert stat.filemode((tmp_path / "superlink.db").stat().st_mode) == "-rw-------"
        assert (tmp_path / "superlink.db").read_bytes() == b"content"


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
        (["register", "node-0.pub", "--partition", "2/2"], 2, "--partition 2/2: should be I/N, such as 0/2"),
        (["register", "node-0.pub", "nowhere", "--partition", "0/2"], 1, "flwr supernode failed: "),
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


def test_a_node_owns_the_clients_that_it_was_registered_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert nodes.owned_clients(5) is None, "where no node was bound, each has its own word"
    lines = ['{"node": 7, "partition": 0, "partitions": 2}', '{"node": 8, "partition": 1, "partitions": 2}']
    nodes.table().write_text("\n".join([*lines, '{"node": 7, "partition": 1, "partitions": 3}', ""]))
    owned = nodes.owned_clients(5)
    assert owned is not None
    assert [owned(node) for node in (7, 8, 9)] == [[1, 4], [1, 3], []]
    nodes.table().write_text(lines[0] + "\n" + lines[1][:20])
    with pytest.raises(ConfigError, match="line 2 is damaged; remove it, and register that node again"):
        owned(7)
    monkeypatch.delenv("FLWR_HOME")
    assert nodes.table().parent == get_flwr_home(), "beside Flower's own settings"


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
