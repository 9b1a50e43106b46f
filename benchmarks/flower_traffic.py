"""What Flower adds to a round of a fleet: bytes on the wire beside payload, and seconds beside work.

python -m benchmarks flower_traffic --rounds 6 --idle 30

Two fleets take turns, each of two SuperNodes with a client: one as docs/deploying.md starts it, and one of Flower's own
commands, whose nodes call the SuperLink themselves. A relay between the two machines, node and server, counts the bytes
of the TCP streams: TLS, HTTP, Flower's messages, polling and heartbeats, all of it. What the processes of one machine
say to each other, on 127.0.0.1, is not on the wire and not counted. The work of a round is next to nothing, so its
seconds are what Flower takes; the machine may be busy, so the least of them counts.
"""

import argparse
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median

from examples.fleet import FEDPM, Fleet, free_port

LITTLE_WORK = ["local.epochs=1", "data.train_examples=100", "data.test_examples=100"]
WAYS = {"up": "uplink_bytes", "down": "downlink_bytes"}
SIDES = {"fedpm flower supernode, behind a gate": False, "flower-supernode, at the SuperLink": True}


class Relay:
    """A port that leads to another one, and counts what passes."""

    def __init__(self, target: int, traffic: Counter[str]) -> None:
        self.target, self.traffic, self.port = target, traffic, free_port()
        server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            self.traffic["connections"] += 1
            for pair in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(65536):
                self.traffic[way] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)  # a mere close would not be heard while the other thread reads


class Counted(Fleet):
    """A fleet whose nodes reach the server through relays; ``plain`` ones with nothing of fedpm's but its app."""

    def __init__(self, folder: Path, *, plain: bool) -> None:
        super().__init__(folder)
        self.plain, self.traffic = plain, Counter[str]()

    def address(self, node: int) -> str:
        """Return a relay's address."""
        return f"127.0.0.1:{Relay(self.port if self.plain else self.gate, self.traffic).port}"

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of the fleet."""
        if not self.plain or arguments[0] != "supernode":
            return super().start(name, *arguments)
        environment = {key: value for key, value in self.environment.items() if key != POLLING}
        environment |= {"PATH": os.pathsep.join([str(Path(FEDPM).parent), os.environ["PATH"]]), **OFFLINE}
        with (self.folder / f"{name}.log").open("ab") as log:
            line = [str(Path(FEDPM).with_name("flower-supernode")), *arguments[1:]]
            self.processes[name] = subprocess.Popen(line, cwd=self.folder, env=environment, stdout=log, stderr=log)
        return self.processes[name]


POLLING = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
OFFLINE["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"


def measure(rounds: int, settings: list[str], idle: float, plain: bool) -> tuple[list[dict[str, float]], Counter[str]]:
    """Return what each round took of a client, and the bytes of a node that waits so many seconds."""
    chosen = [f"rounds={rounds}", "clients.total=2", *settings]
    with tempfile.TemporaryDirectory() as scratch, Counted(Path(scratch), plain=plain) as fleet:
        fleet.fedpm("init", "app", *(part for pair in chosen for part in ("--set", pair))).check_returncode()
        time.sleep(20)  # until both have registered
        before = Counter(fleet.traffic)
        time.sleep(idle)
        waiting = Counter({way: (fleet.traffic[way] - before[way]) // 2 for way in WAYS})
        run = fleet.start("run", "run", "app", "loopback")
        log, rows, before = fleet.folder / "runs/app/rounds.jsonl", list[dict[str, float]](), Counter(fleet.traffic)
        while len(rows) < rounds:
            done = log.read_text().splitlines() if log.exists() else []
            for line in done[len(rows) :]:
                rows.append(_row(json.loads(line), before, fleet.traffic))
                before = Counter(fleet.traffic)
            if run.poll() not in (None, 0):
                raise SystemExit((fleet.folder / "run.log").read_text())
            time.sleep(0.02)
        run.wait()
    return rows, waiting


def _row(record: dict[str, float], before: Counter[str], now: Counter[str]) -> dict[str, float]:
    row = {"round": record["round"], "seconds": record["seconds"]}
    for way, name in WAYS.items():
        row[f"payload {way}"] = record[name] / 2
        row[f"wire {way}"] = (now[way] - before[way]) / 2
        row[f"added {way}"] = row[f"wire {way}"] - row[f"payload {way}"]
    return row | {"connections": (now["connections"] - before["connections"]) / 2}


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print the tables of docs/deploying.md."""
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=LITTLE_WORK, metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    for side, plain in SIDES.items():
        rows, waiting = measure(options.rounds, options.set, options.idle, plain)
        print(f"\n{side} (load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)\n")
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + "---|" * len(rows[0]))
        for row in rows:
            cells = [f"{value:,.1f}" if name == "seconds" else f"{value:,.0f}" for name, value in row.items()]
            print("| " + " | ".join(cells) + " |")
        later = rows[1:] or rows
        added = ", ".join(f"{median(row[f'added {way}'] for row in later):,.0f} {way}" for way in WAYS)
        print(f"\nadded to a client's round after the first, median: {added} bytes")
        print(f"a round takes {min(row['seconds'] for row in later):.2f} s at the least")
        each = ", ".join(f"{waiting[way] / options.idle:.0f} {way}" for way in WAYS)
        print(f"a node that waits: {each} bytes a second", flush=True)
