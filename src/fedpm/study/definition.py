"""What a study is: a TOML file with a base configuration, settings, and axes whose values are combined.

An axis is the list of values of a key, ``rounds = [5, 10]``, or a table of labels, each with several
settings that belong together, ``"0.5" = { "clients.total" = 10, "clients.rho" = 0.5 }``.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import tomli_w
from pydantic import Field, ValidationError

from fedpm import config as configs
from fedpm.config import Config
from fedpm.errors import ArtifactError, ConfigError, choices
from fedpm.files import unreadable
from fedpm.registry import Settings

Overrides = dict[str, Any]
"""Values by dotted key."""
Axes = dict[str, dict[str, Overrides]]
ScaleName = Literal["small", "paper"]
Goal = Annotated[float, Field(gt=0, le=1)]


class Published(Settings):
    """Figures that the paper gives: rows of a label of each axis in order, then the mean and perhaps ± σ."""

    quantity: Literal["accuracy", "paper_bpp", "model_bpp"]
    where: str
    rows: list[list[str | float]]


class Scale(Settings):
    """A size of a study: what it changes, and in words what thereby differs from the paper."""

    base: str | None = None
    seeds: int = Field(3, gt=0)
    differs: str = ""
    settings: Overrides = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)


class StudyFile(Settings):
    """A study as it stands in its file."""

    title: str
    about: str = ""
    paper: str = ""
    base: str = "quickstart"
    goal: Goal | list[Goal] = Field(default_factory=list, description="accuracies: how many bytes until each?")
    settings: Overrides = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)
    published: list[Published] = Field(default_factory=list)
    scale: dict[ScaleName, Scale] = Field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of a study: its place on each axis, its seed, and what it sets."""

    labels: dict[str, str]
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """The name of its folder."""
        words = [re.sub(r"[^\w.]+", "-", label).strip("-") for label in self.labels.values()]
        return "_".join([*words, f"seed{self.seed}"])


@dataclass(frozen=True)
class Study:
    """A study at one scale: nothing is left to choose but where it runs and how many seeds."""

    title: str
    about: str
    paper: str
    scale: str
    differs: str
    base: str
    goals: list[float]
    seeds: int
    settings: Overrides
    axes: Axes
    published: list[Published]

    def runs(self, seeds: int, overrides: Iterable[str] = ()) -> list[Run]:
        """Return the runs, seed after seed; every fault in any of their settings is raised here."""
        common, runs, faults = {**self.settings, **dict(map(configs.pair, overrides))}, [], []
        for seed, (labels, values) in itertools.product(range(seeds), _combined(self.axes)):
            base = Path(self.base) if self.base.endswith(".toml") else self.base
            try:
                config = configs.load(base, {**common, **values, "seed": seed})
                runs.append(Run(labels, seed, config))
            except ConfigError as error:
                faults += [line for line in str(error).splitlines() if line not in faults]
        if faults:
            raise ConfigError("\n".join(faults))
        names = [run.name for run in runs]
        if double := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"axes: two combinations are both called {double[0]}; give them labels that differ")
        return runs

    def to_toml(self) -> str:
        """Return all that decides what a run of this study is, for the study's folder."""
        kept = {key: value for key, value in vars(self).items() if key != "seeds" and value not in (None, "")}
        return tomli_w.dumps({**kept, "published": [table.model_dump() for table in self.published]})


class Labelled(Protocol):
    """What stands at a label of each axis."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels, by axis."""


Row = TypeVar("Row", bound=Labelled)


def select(rows: Sequence[Row], only: Sequence[str], source: object) -> list[Row]:
    """Return the rows of a study with these labels: on each axis of which some are named, one of them."""
    there: dict[str, dict[str, None]] = {}
    for row in rows:
        for axis, label in row.labels.items():
            there.setdefault(axis, {})[label] = None
    known = {label: None for labels in there.values() for label in labels}
    if unknown := [label for label in only if label not in known]:
        raise ConfigError(f"{source}: no row is called {unknown[0]!r}; {choices(unknown[0], known)}")
    wanted = {axis: set(only) & set(labels) or set(labels) for axis, labels in there.items()}
    return [row for row in rows if all(label in wanted[axis] for axis, label in row.labels.items())]


def studies() -> dict[str, StudyFile]:
    """Return the studies that come with the package."""
    files = (f for f in (resources.files("fedpm.study") / "catalog").iterdir() if f.name.endswith(".toml"))
    return {
        f.name.removesuffix(".toml"): _parse(tomllib.loads(f.read_text()), f.name)
        for f in sorted(files, key=lambda f: f.name)
    }


def load(name: str, scale: str | None = None, overrides: Iterable[str] = ()) -> Study:
    """Return a study by its name or its file, at a scale (default: small, where it has scales), with overrides."""
    file = _find(name)
    if scale is None:
        scale = "small" if "small" in file.scale else next(iter(file.scale), "")
    if scale and scale not in file.scale:
        there = ", ".join(file.scale) or "none"
        raise ConfigError(f"--scale {scale}: {name} has no such scale; it has: {there}")
    sized = file.scale[scale] if scale else Scale()
    settings = {**file.settings, **sized.settings}
    axes = {key: _axis(key, values) for key, values in {**file.axes, **sized.axes}.items()}
    taken = {key for points in axes.values() for point in points.values() for key in point} | {"seed"}
    changed = list(overrides)
    for override in changed:
        key, value = configs.pair(override)
        if key in taken:
            raise ConfigError(f"--set {override}: the study itself varies {key}; change that in a file of your own")
        settings[key] = value
    base = sized.base or file.base
    if base.endswith(".toml"):
        base = str((Path(name).parent / base).resolve())
    words = [sized.differs, f"Changed on the command line: {', '.join(changed)}." if changed else ""]
    about = {key: getattr(file, key) for key in ("title", "about", "paper", "published")}
    return Study(
        **about,
        goals=file.goal if isinstance(file.goal, list) else [file.goal],
        scale=scale,
        differs=" ".join(filter(None, words)),
        base=base,
        seeds=sized.seeds,
        settings=settings,
        axes=axes,
    )


def read(folder: Path) -> Study:
    """Return the study of a folder that ``to_toml`` was written to."""
    file = folder / "study.toml"
    try:
        table = tomllib.loads(file.read_text())
        table["published"] = [Published.model_validate(entry) for entry in table["published"]]
        return Study(**{"about": "", "paper": "", "scale": "", "differs": "", "seeds": 1, **table})
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{file}: not a study that this release wrote ({error}); choose another folder") from None


def _find(name: str) -> StudyFile:
    known = studies()
    if name in known:
        return known[name]
    if not name.endswith(".toml"):
        raise ConfigError(f"{name}: there is no such study; {choices(name, known)}, or a file of your own, .toml")
    try:
        return _parse(tomllib.loads(Path(name).read_text()), name)
    except OSError as error:
        raise ConfigError(unreadable(name, error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: not a TOML file ({error})") from None


def _parse(table: dict[str, Any], name: str) -> StudyFile:
    try:
        return StudyFile.model_validate(table)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{name}: {_fault(fault)}" for fault in error.errors())) from None


def _fault(fault: Any) -> str:
    """Return what is wrong with a key of a study's file; for one that is unknown, those that there are."""
    *tables, key = fault["loc"]
    where = ".".join(map(str, fault["loc"]))
    if fault["type"] != "extra_forbidden":
        return f"{where}: {fault['msg']}"
    kinds: dict[str, type[Settings]] = {"scale": Scale, "published": Published}
    known = (kinds[tables[0]] if tables else StudyFile).model_fields
    return f"{where}: there is no such key; {choices(str(key), known)}"


def _axis(key: str, values: Any) -> dict[str, Overrides]:
    if isinstance(values, list) and values:
        return {str(value): {key: value} for value in values}
    if isinstance(values, dict) and values and all(isinstance(point, dict) for point in values.values()):
        return values
    raise ConfigError(f"axes.{key} should be a list of values of that key, or a table of labels with settings each")


def _combined(axes: Axes) -> Iterator[tuple[dict[str, str], Overrides]]:
    """Yield every combination: a label of each axis, and the settings of all of them together."""
    for points in itertools.product(*(axis.items() for axis in axes.values())):
        labels = dict(zip(axes, (label for label, _ in points), strict=True))
        yield labels, {key: value for _, settings in points for key, value in settings.items()}
