"""The parts that a run is put together from, by name: methods, mask coders, aggregators, engines.

A part is one file, in this package or in yours: a class, its settings, and a spec that the file registers when it is
imported (docs/extending.md). Everything else asks the registries: settings, help, errors, wire numbers, reports.
Parts of yours are imported before fedpm looks for them: by your own program; by the entry points of an installed
package, group ``fedpm.parts``; or by FEDPM_PLUGINS, modules or .py files with commas between.
"""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from fedpm.errors import ConfigError

BUILT_IN = (
    "fedpm.wire.coders.frequency",
    "fedpm.wire.coders.side_information",
    "fedpm.wire.coders.shared_randomness",
    "fedpm.wire.coders.relative_entropy",
    "fedpm.wire.coders.secure_sum",
    *(f"fedpm.aggregation.{rule}" for rule in ("mean", "flip_filter", "peer_filter", "trimmed_votes", "group_median")),
    "fedpm.methods.mask.fedpm",
    "fedpm.methods.mask.fedmask",
    "fedpm.methods.mask.hidenseek",
    "fedpm.methods.mask.frl",
    "fedpm.methods.dense.qsgd",
    "fedpm.methods.dense.terngrad",
    "fedpm.methods.dense.signsgd",
    "fedpm.methods.dense.drive",
    "fedpm.methods.dense.eden",
    "fedpm.methods.dense.fedmrn",
    "fedpm.methods.dense.fedavg",
    "fedpm.engines.inprocess",
    "fedpm.engines.flower",
)
"""The files of this package's own parts, in the order in which they are listed; none imports torch or Flower."""
PLUGINS = "FEDPM_PLUGINS"
OWN_FORMS = 64  # numbers on the wire from here on are free for parts of your own


class Settings(BaseModel):
    """A table of settings: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def setting(default: Any, description: str, *, changes_results: bool = True, **bounds: Any) -> Any:
    """Return a key of a table; ``changes_results`` is said here and nowhere else."""
    return Field(default, description=description, json_schema_extra={"changes_results": changes_results}, **bounds)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is known of a part: its name in settings, its label in reports, a line of help, its settings, its builder.

    The settings are the table of the part's name, with ``_`` for ``-``.
    """

    name: str
    label: str
    about: str
    build: Callable[..., Any]
    settings: type[Settings] | None = None

    @property
    def table(self) -> str:
        """The name of the part's table of settings."""
        return self.name.replace("-", "_")

    @property
    def tables(self) -> dict[str, type[Settings]]:
        """All tables that the part reads, by name."""
        return {} if self.settings is None else {self.table: self.settings}


@dataclass(frozen=True, kw_only=True)
class MethodSpec(Spec):
    """What clients and server do; ``build`` takes ``methods.base.Ingredients``.

    Args:
        tuned: what ``auto`` means, by key, found on validation data; a value, or a function of all values by key.
        private: the same by ``privacy.unit``; a method without it does not train with differential privacy.
        shared: tables that several methods read, by name.
        form: the number of its uploads on the wire; None for methods whose uploads bear their coder's number.
        sampled: whether the masks it sends are samples of probabilities.
    """

    tuned: Mapping[str, Any]
    private: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared: Mapping[str, type[Settings]] = field(default_factory=dict)
    form: int | None = None
    sampled: bool = False

    @property
    def masks(self) -> bool:
        """Whether it sends masks, which a coder codes."""
        return self.form is None

    @property
    def tables(self) -> dict[str, type[Settings]]:
        """All tables that the method reads, by name."""
        return {**self.shared, **super().tables}


@dataclass(frozen=True, kw_only=True)
class CoderSpec(Spec):
    """How a mask is coded on its way up; ``build`` takes the coder's settings.

    Args:
        form: the number on the wire of uploads with a sampled mask.
        threshold_form: the same of a mask by threshold; None for a coder that codes samples only.
        shared_randomness: whether the server knows the randomness of the sample, so that sampling hides nothing.
        shared_uniform: whether its masks are 1[u < θ_k] with the u of ``Context.uniform``, from which a broadcast can
            predict them.
        secure: whether masks are summed in secret, so that the server learns their sum and no single one.
    """

    form: int
    threshold_form: int | None = None
    shared_randomness: bool = False
    shared_uniform: bool = False
    secure: bool = False


@dataclass(frozen=True, kw_only=True)
class AggregatorSpec(Spec):
    """How the updates of a round become one; ``build`` takes the aggregator's settings."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec(Spec):
    """What runs the clients; ``build`` takes ``engines.base.Clients`` and ``engines.base.Start``."""


S = TypeVar("S", bound=Spec)


class Registry(Generic[S]):
    """The parts of one kind by name; ``key`` is the setting that chooses one."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._parts: dict[str, S] = {}

    def add(self, spec: S) -> None:
        """Take a part in; the same name from another file is refused."""
        there = self._parts.get(spec.name)
        if there is not None and there.build.__module__ != spec.build.__module__:
            raise ConfigError(
                f"{self.key} = {spec.name!r}: {spec.build.__module__} registers a part that {there.build.__module__} "
                "has registered before; give it another name"
            )
        self._parts[spec.name] = spec

    def __iter__(self) -> Iterator[S]:
        load_parts()
        return iter(sorted(self._parts.values(), key=_rank))  # whichever was imported first

    def __contains__(self, name: object) -> bool:
        load_parts()
        return name in self._parts

    def __getitem__(self, name: str) -> S:
        load_parts()
        if name not in self._parts:
            raise ConfigError(f"{self.key} = {name!r}: {self.wanted(name)}")
        return self._parts[name]

    def names(self) -> list[str]:
        """Return the names of all parts."""
        return [spec.name for spec in self]

    def wanted(self, name: str) -> str:
        """Return what a name should have been."""
        *first, last = map(repr, self.names())
        near = difflib.get_close_matches(name, self.names(), n=1)
        choices = f"{', '.join(first)} or {last}" if first else last
        return f"should be {choices}" + (f"; did you mean {near[0]!r}?" if near else "")


def _rank(spec: Spec) -> int:
    """Return a part's place in listings: this package's own in their order, then others."""
    return {module: place for place, module in enumerate(BUILT_IN)}.get(spec.build.__module__, len(BUILT_IN))


METHODS = Registry[MethodSpec]("algorithm")
CODERS = Registry[CoderSpec]("codec")
AGGREGATORS = Registry[AggregatorSpec]("aggregator")
ENGINES = Registry[EngineSpec]("engine")
_KINDS: dict[type[Spec], Registry[Any]] = {
    MethodSpec: METHODS, CoderSpec: CODERS, AggregatorSpec: AGGREGATORS, EngineSpec: ENGINES
}  # fmt: skip


def register(spec: Spec) -> None:
    """Make a part known; call it at the end of the part's file."""
    for other in (*METHODS._parts.values(), *CODERS._parts.values()):
        if both := forms_of(spec) & forms_of(other) if other.name != spec.name else None:
            raise ConfigError(
                f"{spec.name}: {both.pop()} on the wire means {other.name} already; choose another number, from "
                f"{OWN_FORMS} to 255"
            )
    _KINDS[type(spec)].add(spec)


def forms_of(spec: Spec) -> set[int]:
    """Return the numbers that uploads of a part bear on the wire."""
    return {form for name in ("form", "threshold_form") if (form := getattr(spec, name, None)) is not None}


def tables() -> dict[str, type[Settings]]:
    """Return the tables of settings of all parts, by name."""
    load_parts()
    return {name: kind for registry in _KINDS.values() for spec in registry for name, kind in spec.tables.items()}


_loaded: set[str] = set()


def load_parts() -> None:
    """Import this package's own parts and those that entry points and FEDPM_PLUGINS name, each once."""
    if "built-in" not in _loaded:
        _loaded.add("built-in")  # first: the files that are imported now register, and may look around
        for module in BUILT_IN:
            importlib.import_module(module)
        for entry in entry_points(group="fedpm.parts"):
            _imported(f"entry point {entry.name}", entry.value)
    for name in filter(None, (word.strip() for word in os.environ.get(PLUGINS, "").split(","))):
        if name not in _loaded:
            _loaded.add(name)
            _imported(PLUGINS, name)


def _imported(where: str, name: str) -> None:
    path = Path(name).expanduser().resolve()
    if ours := name.endswith(".py"):
        sys.path.append(str(path.parent))  # so that worker processes find it too
    try:
        importlib.import_module(path.stem if ours else name)
    except Exception as error:
        raise ConfigError(f"{where} = {name}: cannot be imported ({type(error).__name__}: {error})") from None
