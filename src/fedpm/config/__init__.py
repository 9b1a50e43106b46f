"""Settings: typed models, read from presets, TOML files and ``key=value`` pairs, written back as TOML.

Everything wrong with a configuration is reported at once. Configuration ends in ``experiment.build``: the
classes below it take plain arguments.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import tomli_w
from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedpm.config.privacy import PrivacyConfig, refusals
from fedpm.config.sections import (
    AggregationConfig,
    ClientsConfig,
    DataConfig,
    DenseConfig,
    EdenConfig,
    FedMaskConfig,
    FlowerConfig,
    LocalConfig,
    ModelConfig,
    QSGDConfig,
    RelativeEntropyConfig,
    Section,
    SignSGDConfig,
    TernGradConfig,
)
from fedpm.errors import ConfigError


class Config(Section):
    """A complete experiment."""

    seed: int = Field(0, ge=0, lt=2**63, description="names every random stream of the run")
    rounds: int = Field(20, gt=0, lt=2**31, description="federated rounds")
    algorithm: Literal["fedpm", "fedmask", "fedavg", "signsgd", "terngrad", "qsgd", "drive", "eden"] = Field(
        "fedpm", description="what clients and server do"
    )
    codec: Literal["auto", "frequency", "side-information", "shared-randomness", "relative-entropy"] = Field(
        "auto",
        description="how masks are coded on the way up; relative-entropy changes the masks a little, the others do "
        "not; auto: shared-randomness for fedpm, side-information for fedmask",
    )
    engine: Literal["inprocess", "flower"] = Field("inprocess", description="what runs the clients")
    workers: Literal["auto"] | int = Field("auto", description="processes that train clients; never changes results")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of training; auto: bfloat16 where the hardware computes in it"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events into the run folder")
    data: DataConfig = DataConfig()
    clients: ClientsConfig = ClientsConfig()
    model: ModelConfig = ModelConfig()
    local: LocalConfig = LocalConfig()
    aggregation: AggregationConfig = AggregationConfig()
    relative_entropy: RelativeEntropyConfig = RelativeEntropyConfig()
    fedmask: FedMaskConfig = FedMaskConfig()
    dense: DenseConfig = DenseConfig()
    signsgd: SignSGDConfig = SignSGDConfig()
    terngrad: TernGradConfig = TernGradConfig()
    qsgd: QSGDConfig = QSGDConfig()
    eden: EdenConfig = EdenConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    flower: FlowerConfig = FlowerConfig()

    @model_validator(mode="after")
    def _workers(self) -> Self:
        if isinstance(self.workers, int) and self.workers < 1:
            raise ValueError(f"workers = {self.workers} should be 'auto' or at least 1")
        return self

    @model_validator(mode="after")
    def _codec(self) -> Self:
        if self.algorithm == "fedmask" and self.codec in ("shared-randomness", "relative-entropy"):
            raise ValueError(
                f"codec = {self.codec!r} codes samples, and the masks of algorithm = 'fedmask' are none: "
                "use 'side-information' or 'frequency'"
            )
        return self

    @model_validator(mode="after")
    def _masks(self) -> Self:
        if self.clients.per_round * self.reset_every > 2**16:
            raise ValueError(
                f"clients.sampled × aggregation.reset_every = {self.clients.per_round} × {self.reset_every}: "
                "a posterior should be of at most 2**16 masks; reset more often"
            )
        return self

    @model_validator(mode="after")
    def _privacy(self) -> Self:
        if faults := refusals(self):
            raise ValueError("\n".join(faults))
        return self

    @property
    def quorum(self) -> int:
        """The number of clients whose answers a round needs; no client of this process goes missing."""
        return ceil(self.flower.quorum * self.clients.per_round) if self.engine == "flower" else 0

    @property
    def reset_every(self) -> int:
        """The number of rounds between resets of the prior, γ (the paper's rule of thumb: 1/ρ)."""
        gamma = self.aggregation.reset_every
        return round(self.clients.total / self.clients.per_round) if gamma == "auto" else gamma


def parse(settings: Mapping[str, Any]) -> Config:
    """Build a configuration from nested tables, or raise one ConfigError that lists all faults."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def load(base: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Read a preset (a name) or a TOML file (a path) and apply ``key=value`` overrides."""
    if base is None:
        settings: dict[str, Any] = {}
    elif isinstance(base, Path):
        settings = _read_toml(base)
    else:
        settings = tomllib.loads(_preset_text(base))
    for override in overrides:
        _apply(settings, override)
    return parse(settings)


def presets() -> dict[str, str]:
    """Return the names of the presets and what each is, from the first comment line of its file."""
    files = (f for f in (resources.files("fedpm.config") / "presets").iterdir() if f.name.endswith(".toml"))
    return {
        f.name.removesuffix(".toml"): f.read_text().splitlines()[0].lstrip("# ")
        for f in sorted(files, key=lambda f: f.name)
    }


def to_toml(config: Config) -> str:
    """Return the complete configuration as TOML that ``load`` reads back."""
    return tomli_w.dumps(settings_of(config))


def settings_of(config: Config, without: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return everything that is set, but what belongs to algorithms other than the chosen one, and ``without``."""
    others = {table for tables in TABLES.values() for table in tables} - TABLES[config.algorithm]
    others |= {"privacy"} if config.privacy.unit == "none" else set()
    others |= {"flower"} if config.engine != "flower" else set()
    return config.model_dump(exclude_none=True, exclude={**dict.fromkeys(others, True), **without})


TABLES = {
    "fedpm": {"codec", "relative_entropy", "aggregation"},
    "fedmask": {"codec", "fedmask"},
    "fedavg": {"dense"},
    "signsgd": {"dense", "signsgd"},
    "terngrad": {"dense", "terngrad"},
    "qsgd": {"dense", "qsgd"},
    "drive": {"dense"},
    "eden": {"dense", "eden"},
}
"""What belongs to some algorithms only."""


def describe() -> list[tuple[str, str, str]]:
    """Return every key with its default and its meaning."""
    rows = []
    for name, field in Config.model_fields.items():
        if isinstance(field.default, Section):
            section = type(field.default)
            rows += [(f"{name}.{key}", *_describe(inner)) for key, inner in section.model_fields.items()]
        else:
            rows.append((name, *_describe(field)))
    return rows


def _describe(field: FieldInfo) -> tuple[str, str]:
    """Return a key's default and its meaning, with the choices where there are several."""
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    meaning = field.description or ""
    if len(choices) > 1:
        meaning += f" ({', '.join(choices)})"
    return "" if field.default is None else str(field.default), meaning


def _preset_text(name: str) -> str:
    if name not in presets():
        raise ConfigError(f"--preset {name}: there is no such preset; there are: {', '.join(presets())}")
    return (resources.files("fedpm.config") / "presets" / f"{name}.toml").read_text()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None


def pair(override: str) -> tuple[str, Any]:
    """Return the key and the value of a ``key=value`` pair; what is not TOML is a bare word, as in algorithm=fedpm."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: should be KEY=VALUE, such as rounds=5 or local.lr=0.05")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text


def _apply(settings: dict[str, Any], override: str) -> None:
    key, value = pair(override)
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"--set {override}: {table} is a single value, not a table of settings")
    settings[last] = value


def _explain(error: ValidationError) -> str:
    """Turn pydantic's list of faults into a line a key: the key, its value, what is allowed."""
    known = [key for key, _, _ in describe()]
    lines: dict[str, str] = {}
    for fault in error.errors():
        location = [str(part) for part in fault["loc"]]
        key = ".".join(location[:2] if location and location[0] in _sections() else location[:1])
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "fedpm run --help lists the keys"
            lines[key] = f"{key} = {fault['input']!r}: unknown key; {hint}"
        elif fault["type"] == "value_error":
            lines[fault["msg"]] = fault["msg"].removeprefix("Value error, ")
        else:
            wanted = fault["msg"].removeprefix("Input ")
            lines[key] = f"{lines[key]}, or {wanted}" if key in lines else f"{key} = {fault['input']!r}: {wanted}"
    return "\n".join(lines.values())


def _sections() -> set[str]:
    return {name for name, field in Config.model_fields.items() if isinstance(field.default, Section)}
