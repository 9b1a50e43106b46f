"""Bytes on the wire against payload bytes, on a fleet of two SuperNodes.

python -m benchmarks flower_traffic --rounds 4 --idle 30

Between each SuperNode and the SuperLink stands a relay that counts the bytes of the TCP streams: TLS, HTTP, Flower's
messages, polling and heartbeats, all of it. Each node hosts one client.
"""

import argparse
import json
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from examples.fleet import Fleet, free_port


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
            for pair in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(65536):
                self.traffic[way] += len(data)
                sink.sendall(data)


class Counted(Fleet):
    """A fleet whose nodes reach the SuperLink through relays."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.traffic: Counter[str] = Counter()

    def address(self, node: int) -> str:
        """Return a relay's address."""
        return f"127.0.0.1:{Relay(self.gate, self.traffic).port}"


def measure(rounds: int, settings: list[str], idle: float) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return bytes per client of each round, and bytes per second of a node that waits."""
    chosen = [f"rounds={rounds}", "clients.total=2", *settings]
    with tempfile.TemporaryDirectory() as scratch, Counted(Path(scratch)) as fleet:
        fleet.fedpm("init", "app", *(part for pair in chosen for part in ("--set", pair))).check_returncode()
        time.sleep(10)  # until both have registered
        before = Counter(fleet.traffic)
        time.sleep(idle)
        waiting = {way: (fleet.traffic[way] - before[way]) / 2 / idle for way in ("up", "down")}
        run = fleet.start("run", "run", "app", "loopback")
        log, rows, before = fleet.folder / "runs/app/rounds.jsonl", list[dict[str, float]](), Counter(fleet.traffic)
        while len(rows) < rounds:
            done = log.read_text().splitlines() if log.exists() else []
            for line in done[len(rows) :]:
                record, now = json.loads(line), Counter(fleet.traffic)
                row = {"round": record["round"], "seconds": record["seconds"]}
                for way, name in (("up", "uplink_bytes"), ("down", "downlink_bytes")):
                    row[f"payload {way}"] = record[name] / 2
                    row[f"wire {way}"] = (now[way] - before[way]) / 2
                rows.append(row)
                before = now
            if run.poll() not in (None, 0):
                raise SystemExit((fleet.folder / "run.log").read_text())
            time.sleep(0.05)
        run.wait()
    return rows, waiting


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print the table of docs/deploying.md."""
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=["local.epochs=2"], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    rows, waiting = measure(options.rounds, options.set, options.idle)
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(f"{value:,.0f}" for value in row.values()) + " |")
    print(f"a node that waits: {waiting['up']:.0f} bytes up and {waiting['down']:.0f} down a second")
