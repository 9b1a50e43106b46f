"""A fleet on this machine: SuperLink, gate and two SuperNodes as processes of their own, with TLS and node keys.

Run it from anywhere: python examples/fleet.py. It needs Flower (pip install '.[flower]'), takes a minute or two,
and leaves nothing behind. docs/deploying.md gives the same commands for machines of their own.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

FEDPM = str(Path(sys.executable).with_name("fedpm"))


class Fleet:
    """SuperLink, gate and SuperNodes on 127.0.0.1, for as long as the context lasts."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, self.nodes, self.keys = folder, nodes, folder / "keys"
        self.port, self.gate = free_port(), free_port()
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.1"  # a fleet for trials need not be patient
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.fedpm("certificates", str(self.keys), "--nodes", str(self.nodes)).check_returncode()
            home = self.folder / "home"
            home.mkdir()
            connection = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.keys / "ca.pem")}
            lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
            (home / "config.toml").write_text("\n".join(["[superlink.loopback]", *lines, ""]))
            self.start_superlink()
            self.start_gate()
            self.wait("superlink", self.port)
            self.wait("gate", self.gate)
            registering = [self.register(number) for number in range(self.nodes)]
            for number, process in enumerate(registering):
                if process.wait():
                    raise RuntimeError((self.folder / f"register-{number}.log").read_text())
                self.start_node(number)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)

    def fedpm(self, *arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Run ``fedpm flower ...`` to its end."""
        return subprocess.run(
            [FEDPM, "flower", *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``fedpm flower ...``; it writes to a log beside the other files."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [FEDPM, "flower", *arguments], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        return self.processes[name]

    def register(self, node: int, partition: str | None = None) -> subprocess.Popen[bytes]:
        """Tell the SuperLink a SuperNode's public key, and which clients it may answer for."""
        public, clients = str(self.keys / f"node-{node}.pub"), partition or f"{node}/{self.nodes}"
        process = self.start(f"register-{node}", "register", public, "loopback", "--partition", clients)
        return self.processes.pop(f"register-{node}", process)

    def start_superlink(self, *more: str) -> None:
        """Start the SuperLink, perhaps with more options."""
        certificate = ["--ssl-ca-certfile", f"{self.keys}/ca.pem", "--ssl-certfile", f"{self.keys}/server.pem"]
        place = ["--ssl-keyfile", f"{self.keys}/server.key", "--host", "127.0.0.1", "--port", str(self.port)]
        self.start("superlink", "superlink", *certificate, *place, "--enable-supernode-auth", *more)

    def start_gate(self) -> None:
        """Start the gate, through which SuperNodes reach the SuperLink and nobody else does."""
        listen, superlink = f"127.0.0.1:{self.gate}", f"127.0.0.1:{self.port}"
        self.start("gate", "gate", "--listen", listen, "--superlink", superlink, "--keys", str(self.keys))

    def wait(self, name: str, port: int) -> None:
        """Wait until a process listens."""
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if self.processes[name].poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.folder / f"{name}.log").read_text()) from None
                time.sleep(0.1)

    def address(self, node: int) -> str:
        """Return where a SuperNode reaches the SuperLink."""
        return f"127.0.0.1:{self.gate}"

    def start_node(self, number: int, key: str | None = None, config: str | None = None) -> subprocess.Popen[bytes]:
        """Start a SuperNode, which hosts every client whose number leaves the rest ``number``."""
        config = config or f"partition-id={number} num-partitions={self.nodes}"
        secret = key or str(self.keys / f"node-{number}")
        return self.start(
            f"node-{number}", "supernode", "--superlink", self.address(number),
            "--root-certificates", f"{self.keys}/ca.pem", "--auth-supernode-private-key", secret,
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def stop(self, name: str) -> None:
        """End a process in good order, or after a while in any order."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Train on the fleet."""
    settings = ["rounds=2", "clients.total=2", "local.epochs=1", "data.train_examples=200", "data.test_examples=100"]
    with tempfile.TemporaryDirectory() as scratch, Fleet(Path(scratch)) as fleet:
        fleet.fedpm("init", "app", *(part for pair in settings for part in ("--set", pair))).check_returncode()
        done = fleet.fedpm("run", "app", "loopback")
        print(done.stdout)
        if done.returncode:
            sys.exit(done.stderr)


if __name__ == "__main__":
    main()
