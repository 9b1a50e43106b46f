"""Flower's commands, quiet and offline, and a run that is followed to its end."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fedpm.engines.flower.environment import quiet, require_flower
from fedpm.errors import ConfigError, EngineError


def become(command: str, arguments: list[str]) -> NoReturn:
    """Turn this process into a command of Flower's."""
    require_flower()
    program = _program(command)
    mark = {} if command == "flwr" else mind()
    os.execve(program, [program, *arguments], {**quiet(), **mark})  # noqa: S606 - arguments of the user's own


def mind(grace: float = 15.0) -> dict[str, str]:
    """Return a mark for the environment of this process, and start another that ends all who bear it once this is gone.

    Flower's processes watch over each other, but one that waits for the rest of a message hears no signal.
    """
    parent, name, value = os.getpid(), "FEDPM_FLEET", uuid.uuid4().hex
    if not Path("/proc/self/environ").exists() or os.fork():
        return {name: value}
    try:
        for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(heard, signal.SIG_IGN)
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        while os.getppid() == parent:
            time.sleep(1)
        end = time.monotonic() + grace
        while marked := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _bears(pid, value)]:
            for pid in marked if time.monotonic() > end else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
    finally:
        os._exit(0)


def _bears(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def run(app: Path, superlink: str | None, overrides: list[str]) -> None:
    """Submit an app, show its log, and raise EngineError with the reason if it fails."""
    require_flower()
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"{app}: not an app folder, it has no pyproject.toml; make one with: fedpm flower init {app}")
    link = [] if superlink is None else [superlink]
    # all in one: of several --run-config, Flower keeps the last key of a table only
    config = ["--run-config", " ".join(map(_toml, overrides))] if overrides else []
    number = _ask(["run", str(app), *link, *config])["run-id"]
    print(f"run {number} started", flush=True)
    try:
        subprocess.run(  # noqa: S603 - our own words
            [_program("flwr"), "log", number, *link], env=quiet(), check=False, stderr=subprocess.DEVNULL
        )
        status, details = _followed(number, link)
    except KeyboardInterrupt:
        stop = " ".join(["fedpm flower flwr stop", number, *link])
        raise EngineError(f"no longer watching run {number}, which goes on; to end it: {stop}") from None
    if status != "finished:completed":
        raise EngineError(f"run {number} ended as {status}: {details or 'no reason is given; see the log'}")
    print(f"run {number} completed", flush=True)


def _followed(number: str, link: list[str]) -> tuple[str, str]:
    """Wait until a run has ended, which its log alone does not tell, and return how."""
    while True:
        found = _ask(["list", *link, "--run-id", number])["runs"][0]
        if found["status"].startswith("finished"):
            return found["status"], found["status-details"]
        time.sleep(1)


def _ask(arguments: list[str]) -> Any:
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
    beside = Path(sys.executable).with_name(name)
    if not beside.is_file():
        raise EngineError(f"{beside} is missing: Flower should be installed beside fedpm (pip install 'fedpm[flower]')")
    return str(beside)
