"""Flower's commands, quiet and offline, and a run that is followed to its end."""

import json
import os
import subprocess
import sys
import time
import tomllib
from argparse import ArgumentError, ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fedpm.engines.flower.deploy.preloaded import preloaded
from fedpm.engines.flower.environment import quiet, require_flower
from fedpm.errors import ConfigError, EngineError, StoppedError, install
from fedpm.processes import supervise

_QUESTIONS = {"-h", "--help", "-V", "--version"}
"""Options after which a command that otherwise never ends has answered."""


def execute(command: str, arguments: list[str]) -> NoReturn:
    """Run a command of Flower's and exit as it does; what SuperLink and SuperNode start ends with this process.

    Flower's processes watch over each other, but one that waits for the rest of a message hears no signal.
    """
    require_flower()
    from fedpm.engines.flower.deploy.relay import relayed  # needs Flower's own dependencies

    line = [_program(command), *arguments]
    if command == "flwr":
        os.execve(line[0], line, quiet())  # noqa: S606 - arguments of the user's own
    if command == "flower-superlink":
        keep_database_private(arguments)
    if command != "flower-supernode" or _QUESTIONS.intersection(arguments):
        sys.exit(supervise(line, quiet()))
    told: list[int] = []
    with relayed(arguments, quiet()) as (ours, of_apps), preloaded(of_apps) as environment:
        code = supervise([line[0], *ours], environment, told=told)
    if code in (0, 130) and not told:
        raise EngineError(
            "the SuperNode has ended by itself: most likely its SuperLink was started anew without --database, and "
            "does not know its key any more; register that again (fedpm flower register), and start the SuperNode"
        )
    sys.exit(code)


def keep_database_private(arguments: list[str]) -> None:
    """Make the file that ``--database`` names, if any, readable by this user alone; SQLite's other files follow it."""
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--database", default=":memory:")
    with suppress(ArgumentError):  # of which Flower tells
        file = parser.parse_known_args(arguments)[0].database.removeprefix("sqlite:///")
        if file and not file.startswith(":") and "://" not in file:
            os.close(os.open(file, os.O_CREAT, 0o600))
            os.chmod(file, 0o600)


def run(app: Path, superlink: str | None, overrides: list[str]) -> None:
    """Submit an app, show its log, and raise EngineError with the reason if it fails."""
    require_flower()
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"{app}: not an app folder, it has no pyproject.toml; make one with: fedpm flower init {app}")
    link = [] if superlink is None else [superlink]
    # all in one: of several --run-config, Flower keeps the last key of a table only
    config = ["--run-config", " ".join(map(_toml, overrides))] if overrides else []
    number = ask(["run", str(app), *link, *config])["run-id"]
    print(f"run {number} started", flush=True)
    try:
        subprocess.run(  # noqa: S603 - our own words
            [_program("flwr"), "log", number, *link], env=quiet(), check=False, stderr=subprocess.DEVNULL
        )
        status, details = _end_of(number, link)
    except KeyboardInterrupt:
        stop = " ".join(["fedpm flower flwr stop", number, *link])
        raise StoppedError(f"no longer watching run {number}, which goes on; to end it: {stop}") from None
    if status != "finished:completed":
        raise EngineError(f"run {number} ended as {status}: {details or 'no reason is given; see the log'}")
    print(f"run {number} completed", flush=True)


def _end_of(number: str, link: list[str]) -> tuple[str, str]:
    """Wait until a run has ended, which its log alone does not tell, and return its status and the details."""
    while True:
        listed = ask(["list", *link, "--run-id", number])["runs"][0]
        if listed["status"].startswith("finished"):
            return listed["status"], listed["status-details"]
        time.sleep(1)


def ask(arguments: list[str]) -> Any:
    """Return what ``flwr`` answers, as JSON."""
    done = subprocess.run(  # noqa: S603 - our own words, and the user's
        [_program("flwr"), *arguments, "--format", "json"], env=quiet(), capture_output=True, text=True, check=False
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": (done.stderr or done.stdout).strip() or "it says nothing"}
    if done.returncode != 0 or not answer.get("success"):
        reason = " ".join(str(answer.get("error-message", answer)).split())
        raise EngineError(f"flwr {arguments[0]} failed: {reason}")
    return answer


def _toml(override: str) -> str:
    """Return KEY=VALUE as Flower reads it: bare words in quotes."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: should be KEY=VALUE, such as rounds=5 or app.out=runs/second")
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        text = json.dumps(text)
    return f"{key}={text}"


def _program(name: str) -> str:
    file = Path(sys.executable).with_name(name)
    if not file.is_file():
        raise EngineError(f"{file} is missing: Flower should be installed beside fedpm ({install('flower')})")
    return str(file)
