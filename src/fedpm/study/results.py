"""What came of runs: read from their folders, grouped over seeds, as figures and as the rows of a table."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedpm.config import changes_results, flattened
from fedpm.errors import ArtifactError
from fedpm.experiment.record import RoundRecord
from fedpm.registry import METHODS
from fedpm.study import definition
from fedpm.study.definition import Study


@dataclass(frozen=True)
class Outcome:
    """One run: its place in its study, its settings, a record a round, and its summary where it is finished."""

    folder: Path
    labels: dict[str, str]
    seed: int
    config: dict[str, Any]
    records: list[RoundRecord]
    summary: dict[str, Any]

    def column(self, key: str) -> list[float | None]:
        """Return a figure round by round."""
        return [value_of(record, key) for record in self.records]

    def final(self, key: str) -> float | None:
        """Return a figure of the whole run: its last accuracy, mean bits, or size."""
        if key == "paper_bpp":
            found = [value for value in self.column(key) if value is not None]
            return mean(found) if found else None
        value = self.summary.get(key)
        return value if isinstance(value, int | float) else None

    def total_bytes(self) -> int:
        """Return the bytes of all clients both ways."""
        return sum(record["uplink_bytes"] + record["downlink_bytes"] for record in self.records)

    def bytes_to(self, goal: float) -> int | None:
        """Return the bytes of all clients both ways until the goal was first reached."""
        spent = accumulate(record["uplink_bytes"] + record["downlink_bytes"] for record in self.records)
        return next((s for s, record in zip(spent, self.records, strict=True) if record["accuracy"] >= goal), None)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    labels: dict[str, str]
    runs: list[Outcome]

    @property
    def name(self) -> str:
        """What to call it in a legend."""
        return ", ".join(called(*pair) for pair in self.labels.items()) or self.method

    @property
    def method(self) -> str:
        """What the method of its runs is called."""
        return called(METHODS.key, str(self.runs[0].config[METHODS.key]))

    def finals(self, key: str) -> list[float]:
        """Return a figure of each finished run that has it."""
        return [value for run in self.runs if (value := run.final(key)) is not None]


@dataclass(frozen=True)
class Collection:
    """What is reported together: a study, or some runs."""

    title: str
    groups: list[Group]
    study: Study | None = None
    folder: Path = field(default_factory=Path)

    @property
    def axes(self) -> list[str]:
        """What the groups differ in."""
        return list(self.groups[0].labels)

    @property
    def runs(self) -> list[Outcome]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    @property
    def goals(self) -> list[float]:
        """The accuracies to which bytes are counted."""
        return self.study.goals if self.study else []


def called(axis: str, label: str) -> str:
    """Return a label that is a number with the name of its axis, a method by its own label, any other as it is."""
    if axis == METHODS.key and label in METHODS:
        return METHODS[label].label
    return f"{axis} = {label}" if label[:1].isdigit() else label


def value_of(record: RoundRecord, key: str) -> float | None:
    """Return a figure of a round; ``paper_bpp`` is the paper's accounting, the entropy of the symbols sent."""
    value: Any
    if key == "paper_bpp":
        value = record.get("uplink_paper_bpp")
    elif key == "total_bytes":
        value = record["uplink_bytes"] + record["downlink_bytes"]
    else:
        value = record.get(key)
    return value if isinstance(value, int | float) else None


def collect(folders: Iterable[Path]) -> list[Collection]:
    """Read study folders, a collection each, and other runs, a collection of all of them."""
    found, loose = [], []
    for folder in folders:
        if (folder / "study.toml").is_file():
            found.append(_study(folder))
        elif (folder / "config.toml").is_file():
            loose.append(folder)
        elif below := sorted(file.parent for file in folder.glob("*/config.toml")):
            loose += below
        else:
            raise ArtifactError(f"{folder}: neither a run folder nor a study's; give what fedpm run or study run wrote")
    return [*found, *([_runs(loose)] if loose else [])]


def _study(folder: Path) -> Collection:
    study = definition.read(folder)
    outcomes = []
    names = {run.name.removesuffix("seed0"): run.labels for run in study.runs(1)}
    for path in sorted(file.parent for file in folder.glob("*/config.toml")):
        named = re.fullmatch(r"(.*)seed(\d+)", path.name)
        log = path / "rounds.jsonl"
        if named and named[1] in names and log.is_file() and log.stat().st_size:  # else not ours, or only just begun
            outcomes.append(_outcome(path, names[named[1]], int(named[2])))
    grouped = [
        Group(labels, runs) for labels in names.values() if (runs := [run for run in outcomes if run.labels == labels])
    ]
    if not grouped:
        raise ArtifactError(f"{folder}: no run of this study has ended a round; run it first")
    return Collection(study.title, grouped, study, folder)


def _runs(folders: list[Path]) -> Collection:
    """Group runs by the settings in which they differ."""
    found = {folder: flattened(_settings(folder)) for folder in folders}
    keys = {key: None for settings in found.values() for key in settings if key != "seed" and changes_results(key)}
    axes = [key for key in keys if len({str(settings.get(key)) for settings in found.values()}) > 1]
    if "algorithm" in axes:  # each algorithm has settings of its own
        everywhere = [key for key in axes if all(key in settings for settings in found.values())]
        axes = [key for key in everywhere if key != "local.lr"]
    groups: dict[tuple[str, ...], Group] = {}
    for folder, settings in found.items():
        labels = {key: str(settings.get(key, "–")) for key in axes}
        group = groups.setdefault(tuple(labels.values()), Group(labels, []))
        group.runs.append(_outcome(folder, labels, settings["seed"]))
    return Collection("Runs", list(groups.values()))


def _outcome(folder: Path, labels: dict[str, str], seed: int) -> Outcome:
    try:
        whole, _, _ = (folder / "rounds.jsonl").read_text().rpartition("\n")  # a line may be half written
        lines = whole.splitlines()
        records = [json.loads(line) for line in lines]
        ended = folder / "summary.json"
        summary = json.loads(ended.read_text()) if ended.is_file() else {}
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder}: the run cannot be read ({error})") from None
    if not records:
        raise ArtifactError(f"{folder}: this run has not ended a round yet; wait for it")
    return Outcome(folder, labels, seed, _settings(folder), records, summary)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "config.toml").read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder / 'config.toml'}: cannot be read ({error})") from None


def _mean(values: list[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" if values else "–"


def mean_and_deviation(values: list[float], digits: int = 3) -> str:
    """Return mean ± standard deviation."""
    if not values:
        return "–"
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


COLUMNS: dict[str, Callable[[Group], str]] = {
    "accuracy": lambda group: mean_and_deviation(group.finals("accuracy")),
    "bpp up": lambda group: _mean(group.finals("uplink_bpp"), 3),
    "paper's bpp": lambda group: _mean(group.finals("paper_bpp"), 3),
    "bpp down": lambda group: _mean(group.finals("downlink_bpp"), 3),
    "MB": lambda group: _mean([run.total_bytes() / 1e6 for run in group.runs], 1),
    "model bpp": lambda group: _mean(group.finals("model_bpp"), 3),
    "model kB": lambda group: _mean([size / 1e3 for size in group.finals("model_bytes")], 1),
    "seeds": lambda group: str(len(group.finals("accuracy"))),
}
"""Of the table of everything: mean test accuracy ± σ, bits per parameter and client up (real, and by the paper's
accounting) and down, bytes of all clients both ways, bits per parameter and bytes of the model file, finished runs."""


def overview(collection: Collection) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of everything: a row a group, means over the seeds."""
    head = [*(collection.axes or ["algorithm"]), *COLUMNS]
    rows = [
        [*(group.labels.values() or [group.name]), *(column(group) for column in COLUMNS.values())]
        for group in collection.groups
    ]
    for goal in collection.goals:
        head.insert(-3, f"MB to {goal:g}")
        for row, group in zip(rows, collection.groups, strict=True):
            row.insert(-3, _to_goal(group, goal))
    return head, rows


def _to_goal(group: Group, goal: float) -> str:
    """Return the mean bytes until a goal is reached if all seeds reach it, else how many do."""
    reached = [spent for run in group.runs if (spent := run.bytes_to(goal)) is not None]
    if len(reached) < len(group.runs):
        return f"{len(reached)} of {len(group.runs)}"
    return _mean([spent / 1e6 for spent in reached], 2)
