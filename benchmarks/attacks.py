"""Clients that lie: what each attack does to a run, and what each aggregation rule makes of it.

python -m benchmarks attacks --attack inverted --liars 2 --rule mean            # one cell
python -m benchmarks attacks --out attacks.jsonl --seeds 3                      # the whole table: hours; it resumes
python -m benchmarks attacks --out attacks.jsonl --table                        # what is done so far, as Markdown

A liar is put in on the client's side: it reads the real broadcast and sends a real, encoded upload. Server, coder and
rule are those of any run. Colluders know everything that honest clients sent in the round; docs/security.md has the
table.
"""

import argparse
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import fedpm
from benchmarks.lies import ATTACKS, CHANGES, LABELS, View
from fedpm.aggregation.base import Folded
from fedpm.engines.base import Reply, Task
from fedpm.engines.inprocess import Sequential, replied
from fedpm.experiment.build import Experiment
from fedpm.methods.base import ClientResult
from fedpm.methods.dense.deltas import Deltas
from fedpm.methods.mask.downlink import context
from fedpm.methods.mask.fedpm import FedPM
from fedpm.registry import AggregatorSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.masks import Mask
from fedpm.wire.message import Message
from fedpm.wire.theta import Vector

CLEAN = "none"
RULES = ("mean", "flip-filter", "peer-filter", "trimmed-votes", "group-median")
PRESET = "quickstart"
_SMALL: dict[str, Any] = {
    "model.name": "conv4-slim",
    "fedpm.effort": "rounds",
    "model.init": "half",  # this and the next as the cells were measured
    "local.lookahead": 0.0,
    "local.epochs": 5,
    "rounds": 8,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "quickstart": {"rounds": 10},
    "small": _SMALL,
    "two-classes": {
        **_SMALL,
        "aggregation.discount": 0.75,
        "local.logit_adjustment": 0.3,
        "data.split": "classes",
        "data.classes_per_client": 2,
        "rounds": 12,
    },
    "dirichlet": {**_SMALL, "data.split": "dirichlet", "data.alpha": 0.1},
    "hundred": {**_SMALL, "clients.total": 100},
    "fedavg": {"model.name": "conv4-slim", "algorithm": "fedavg", "local.epochs": 5, "rounds": 8},
}
"""What runs: settings over those of the preset."""
LAST = 3
"""Rounds whose accuracy is averaged."""
_COLOURS = 10  # of lines in a figure, before they come again


@dataclass(frozen=True)
class Cell:
    """A cell of the table, and a seed."""

    setting: str
    rule: str
    attack: str
    liars: int
    seed: int


class MaskWire:
    """Reads broadcasts and writes uploads of masks."""

    attacks = ATTACKS

    def __init__(self, method: Any, round: int, task: Task) -> None:
        self._method = cast(FedPM, method)
        self._told = self._method.reader.read(task.broadcast, round, task.memory)
        self.theta = self._told.start.floats()

    def decode(self, client: int, upload: bytes) -> Mask:
        """Return the mask in an upload."""
        return self._method.coding.coder.decode(Message.from_bytes(upload).coded, self._context(client))

    def encode(self, wanted: Vector, client: int, rng: Streams) -> bytes:
        """Code a sample of these probabilities."""
        return self._method.coding.coder.encode(wanted, self._context(client), private=rng)[1].data

    def _context(self, client: int) -> Context:
        return context(self._method.network, self._told, client)


class ChangeWire:
    """The same of changes of weights."""

    attacks = CHANGES

    def __init__(self, method: Any, round: int, task: Task) -> None:
        self._method, self._round = cast(Deltas, method), round
        self.theta = np.zeros(self._method.network.size, np.float32)

    def decode(self, client: int, upload: bytes) -> Vector:
        """Return the change in an upload."""
        shared = Streams(self._method.seed).at(self._round, client)
        return self._method.quantiser.decode(Message.from_bytes(upload).coded, self._method.network, shared)

    def encode(self, wanted: Vector, client: int, rng: Streams) -> bytes:
        """Code this change."""
        shared = Streams(self._method.seed).at(self._round, client)
        return self._method.quantiser.encode(wanted, self._method.network, rng, shared).coded.data


class Liars(Sequential):
    """Runs clients in this process, some of which lie; the honest ones go first, so that liars know what they sent."""

    def __init__(self, experiment: Experiment, attack: str, liars: Collection[int]) -> None:
        super().__init__(experiment.clients)
        self._method, self._attack, self._liars = experiment.method, attack, frozenset(liars)
        classes, train = len(experiment.dataset.classes), experiment.clients.train
        self._flipped = replace(experiment.clients, train=replace(train, y=classes - 1 - train.y))

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the replies in order."""
        results = {task.client: self._clients.run(round, task) for task in tasks if task.client not in self._liars}
        liars = [task for task in tasks if task.client in self._liars]
        if self._attack == LABELS:
            results |= {task.client: self._flipped.run(round, task) for task in liars}
        elif liars:
            results |= self._lies(round, liars, results)
        for task in tasks:
            yield replied(task, results[task.client])

    def _lies(self, round: int, tasks: list[Task], honest: Mapping[int, ClientResult]) -> dict[int, ClientResult]:
        wire = (MaskWire if isinstance(self._method, FedPM) else ChangeWire)(self._method, round, tasks[0])
        vectors = [wire.decode(client, result.payload) for client, result in honest.items()]
        lies, like = {}, Message.from_bytes(next(iter(honest.values())).payload)
        for task in tasks:
            rng = self._clients.streams.at(round, task.client)
            view = View(wire.theta, vectors, len(tasks), partial(self._honestly, round, task, wire), rng)
            coded = wire.encode(wire.attacks[self._attack](view), task.client, rng)
            lies[task.client] = ClientResult(replace(like, client=task.client, coded=coded).to_bytes())
        return lies

    def _honestly(self, round: int, task: Task, wire: MaskWire | ChangeWire) -> npt.NDArray[Any]:
        return wire.decode(task.client, self._clients.run(round, task).payload)


@dataclass(frozen=True)
class FlowerRule:
    """A robust rule of Flower's own, on the changes of all clients at once."""

    name: str
    liars: int
    sums = False

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        """Return what the rule makes of them."""
        from flwr.server.strategy import aggregate

        results = [([np.array(vector)], 1) for vector in vectors]
        if self.name == "krum":
            (folded,) = aggregate.aggregate_krum(results, self.liars, 0)
        else:
            (folded,) = aggregate.aggregate_trimmed_avg(results, 0.2)
        return Folded(folded.astype(dtype), 1)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Do one run, and return what came of it."""
    for name in ("krum", "trimmed-mean"):
        build = partial(_flower_rule, name, cell.liars)
        build.__module__ = __name__
        register(AggregatorSpec(name=f"flower-{name}", label=name, about="Flower's own", build=build))
    settings = {"workers": 1, "seed": cell.seed, "aggregator": cell.rule, **SETTINGS[cell.setting]}
    start = time.process_time()
    config = fedpm.load_config(PRESET, settings)
    result = fedpm.run(config, start=lambda made: Liars(made, cell.attack, range(cell.liars)), progress=False)
    rejected = [int(client) for record in result.rounds for client in record["rejected"]]
    uploads = [client for record in result.rounds for client in record["clients"]]
    return {
        **asdict(cell),
        "accuracy": [round(record["accuracy"], 4) for record in result.rounds],
        "lies": sum(client < cell.liars for client in uploads),
        "lies_rejected": sum(client < cell.liars for client in rejected),
        "honest": sum(client >= cell.liars for client in uploads),
        "honest_rejected": sum(client >= cell.liars for client in rejected),
        "seconds": round(time.process_time() - start, 1),
    }


def _flower_rule(name: str, liars: int, settings: None) -> FlowerRule:
    return FlowerRule(name, liars)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that the options ask for, the clean runs once for all attacks."""
    for seed in range(options.seeds):
        for rule in options.rule:
            for liars in options.liars:
                for attack in options.attack if liars else [CLEAN]:
                    yield Cell(options.setting, rule, attack, liars, seed)


def score(row: Mapping[str, Any]) -> float:
    """Return the mean accuracy of the last rounds of a run, which is steadier than that of the last alone."""
    return float(mean(row["accuracy"][-LAST:]))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracy by attack and number of liars, a column a rule, as Markdown."""
    lines: list[str] = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        mine = [row for row in rows if row["setting"] == setting]
        rules = list(dict.fromkeys(row["rule"] for row in mine))
        lines += ["", setting, "", f"| attack | liars | {' | '.join(rules)} |", f"|---|---|{'---|' * len(rules)}"]
        for attack in [CLEAN, *ATTACKS, LABELS]:
            for liars in sorted({row["liars"] for row in mine if row["attack"] == attack}):
                found = [[r for r in mine if (r["attack"], r["liars"], r["rule"]) == (attack, liars, x)] for x in rules]
                lines.append(f"| {attack} | {liars} | {' | '.join(map(_shown, found))} |")
    return "\n".join(lines)


def _shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean accuracy over seeds, and what share of lies and of honest uploads was rejected, if any."""
    if not rows:
        return ""
    lies, honest, caught, wronged = (
        sum(row[key] for row in rows) for key in ("lies", "honest", "lies_rejected", "honest_rejected")
    )
    shares = [f"{100 * caught / lies:.0f} % out"] if caught else []
    shares += [f"{100 * wronged / honest:.1f} % wrongly"] if wronged else []
    return f"{mean(map(score, rows)):.3f}" + (f" ({', '.join(shares)})" if shares else "")


def draw(rows: Sequence[Mapping[str, Any]], setting: str, path: Path) -> None:
    """Draw accuracy against the number of liars, for the plain mean and for the default, a line an attack."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "fedpm"
    from matplotlib import pyplot as plt

    tried = {(row["attack"], row["liars"]) for row in rows if row["setting"] == setting}
    shown_attacks = [name for name in [*ATTACKS, LABELS] if sum(attack == name for attack, _ in tried) > 1]
    figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.4), layout="constrained", sharey=True)
    for axes, rule in zip(panels, ("mean", "peer-filter"), strict=True):
        mine = [row for row in rows if (row["setting"], row["rule"]) == (setting, rule)]
        for number, attack in enumerate(shown_attacks):
            shown = [row for row in mine if row["attack"] in (CLEAN, attack)]
            counts = sorted({row["liars"] for row in shown})
            means = [mean(score(row) for row in shown if row["liars"] == liars) for liars in counts]
            line = "-" if number < _COLOURS else "--"
            axes.plot(counts, means, line, marker="o", markersize=3, label=attack)
        axes.set(title=rule, xlabel="liars among ten clients", xticks=range(4), ylim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, metadata={"Date": None})


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run what is missing, and print the table."""
    parser.add_argument("--out", type=Path, help="a line of JSON for each run; what it holds is not run again")
    parser.add_argument("--setting", choices=SETTINGS, default="small")
    parser.add_argument("--attack", choices=[*ATTACKS, LABELS], action="append", help="default: all")
    parser.add_argument("--rule", action="append", help=f"aggregators; default: {', '.join(RULES)}")
    parser.add_argument("--liars", type=int, action="append", help="how many; default: 0, 1, 2 and 3")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--figure", type=Path, help="accuracy against the number of liars, as SVG")
    options = parser.parse_args(arguments)
    options.attack = options.attack or [*ATTACKS, LABELS]
    options.rule, options.liars = options.rule or list(RULES), options.liars or [0, 1, 2, 3]
    kept = options.out is not None and options.out.exists()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if kept else []
    done = {Cell(**{key: row[key] for key in Cell.__annotations__}) for row in rows}
    for cell in [] if options.table else [cell for cell in cells(options) if cell not in done]:
        rows.append(run_cell(cell))
        if options.out is not None:
            with options.out.open("a") as file:
                print(json.dumps(rows[-1]), file=file)
        print(f"{cell}: {score(rows[-1]):.3f}", flush=True)
    print(table(rows))
    if options.figure:
        draw(rows, options.setting, options.figure)
