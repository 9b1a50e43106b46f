"""What came of runs: read from their folders, and grouped over seeds."""

import json
import re
import tomllib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

from fedpm.config import changes_results, flattened
from fedpm.errors import ArtifactError
from fedpm.experiment.record import RoundRecord
from fedpm.files import absent
from fedpm.registry import METHODS, tables
from fedpm.study import definition
from fedpm.study.definition import Study, select


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
        value = self.summary.get(key, self.summary.get("metrics", {}).get(key))
        return value if isinstance(value, int | float) else None

    def total_bytes(self) -> int:
        """Return the bytes of all clients both ways."""
        return sum(record["uplink_bytes"] + record["downlink_bytes"] for record in self.records)

    def bytes_to(self, goal: float) -> int | None:
        """Return the bytes of all clients both ways until the goal was first reached."""
        spent = accumulate(record["uplink_bytes"] + record["downlink_bytes"] for record in self.records)
        return next(
            (s for s, record in zip(spent, self.records, strict=True) if record.get("accuracy", 0.0) >= goal), None
        )


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

    def only(self, labels: Sequence[str]) -> "Collection":
        """Return the groups with these labels: on each axis of which some are named, one of them."""
        return replace(self, groups=select(self.groups, labels, self.folder))

    @property
    def metrics(self) -> list[str]:
        """The names of metrics beside accuracy and loss that any run has."""
        names = dict.fromkeys(name for run in self.runs for name in run.records[-1].get("metrics", ()))
        return [name for name in names if name not in ("accuracy", "loss")]

    @property
    def goals(self) -> list[float]:
        """The accuracies to which bytes are counted."""
        return self.study.goals if self.study else []


def called(axis: str, label: str) -> str:
    """Return a label that is a number with the name of its axis, one of a method by the method's own, others as are."""
    name, *variant = label.split(" ")
    if axis == METHODS.key and name in METHODS:
        return " ".join([METHODS[name].label, *variant])
    return f"{axis} = {label}" if label[:1].isdigit() and axis != "run" else label


def value_of(record: RoundRecord, key: str) -> float | None:
    """Return a figure of a round; ``paper_bpp`` is the paper's accounting, the entropy of the symbols sent."""
    value: Any
    if key == "paper_bpp":
        value = record.get("uplink_paper_bpp")
    elif key == "total_bytes":
        value = record["uplink_bytes"] + record["downlink_bytes"]
    else:
        value = record.get(key, record.get("metrics", {}).get(key))
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
            loose += _begun(folder, below)
        else:
            why = "neither a run folder nor a study's" if folder.exists() else absent(folder)
            raise ArtifactError(f"{folder}: {why}; give what fedpm run or study run wrote")
    return [*found, *([_runs(loose)] if loose else [])]


def _begun(folder: Path, runs: list[Path]) -> list[Path]:
    """Return the runs in a folder that have ended a round; others are told and left out."""
    logs = {run: run / "rounds.jsonl" for run in runs}
    begun = [run for run, log in logs.items() if log.is_file() and b"\n" in log.read_bytes()]
    if not begun:
        raise ArtifactError(f"{folder}: no run in it has ended a round yet; wait for one")
    if idle := [run.name for run in runs if run not in begun]:
        several = f"{', '.join(idle[:5])}{' …' if len(idle) > 5 else ''}"
        warnings.warn(f"{folder}: left out, for no round has ended yet: {several}", UserWarning, stacklevel=3)
    return begun


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
    """Group runs that differ in nothing but their seed; of copies of one run the one that came furthest counts."""
    found = {folder: _told(flattened(_settings(folder))) for folder in folders}
    keys = {key: None for settings in found.values() for key in settings if key != "seed" and changes_results(key)}
    parts = tables()  # whose keys follow from the choice of a part: they tell apart runs that have it
    axes = [key for key in keys if _differ(key, found.values(), among_owners=key.partition(".")[0] in parts)]
    if "algorithm" in axes:  # each algorithm has settings of its own, which tell apart its own runs alone
        names = {settings["algorithm"] for settings in found.values()}
        each = [[settings for settings in found.values() if settings["algorithm"] == name] for name in names]
        everywhere = {key for key in axes if key.partition(".")[0] not in parts or _all_have(key, found.values())}
        everywhere -= {key for spec in METHODS for key in spec.tuned}
        axes = [key for key in axes if key in everywhere or any(_differ(key, alike) for alike in each)]
    seeds: dict[tuple[str, ...], dict[int, Outcome]] = {}
    for folder, settings in found.items():
        labels = {key: _label(settings.get(key, "–")) for key in axes}
        run = _outcome(folder, labels, settings["seed"])
        kept = seeds.setdefault(tuple(labels.values()), {}).setdefault(run.seed, run)
        if (bool(run.summary), len(run.records)) > (bool(kept.summary), len(kept.records)):
            seeds[tuple(labels.values())][run.seed] = run
    groups = [list(runs.values()) for runs in seeds.values()]
    return Collection("Runs", [Group(runs[0].labels, runs) for runs in groups])


def _all_have(key: str, runs: Iterable[dict[str, Any]]) -> bool:
    return all(key in settings for settings in runs)


def _told(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they are told apart: data of one's own by the name of their file."""
    path = settings.get("data.path")
    return settings | ({"data.name": Path(path).name} if path is not None else {})


def _label(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _differ(key: str, runs: Iterable[dict[str, Any]], *, among_owners: bool = False) -> bool:
    return len({str(settings.get(key)) for settings in runs if key in settings or not among_owners}) > 1


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
