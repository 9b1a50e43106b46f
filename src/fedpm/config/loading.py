"""Settings from presets, TOML files, mappings and ``key=value`` pairs, and back to TOML."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedpm.config.explain import explain
from fedpm.config.schema import Config, changes_results, config_class
from fedpm.errors import ConfigError
from fedpm.registry import METHODS


def parse(settings: Mapping[str, Any]) -> Config:
    """Build a configuration from nested tables, or raise one ConfigError that lists all faults."""
    try:
        return config_class().model_validate(settings)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def load(base: str | Path | None = None, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Config:
    """Read a preset (a name) or a TOML file (a path) and apply overrides: ``key=value`` pairs, or values by key."""
    if base is None:
        settings: dict[str, Any] = {}
    elif isinstance(base, Path):
        settings = _read_toml(base)
    else:
        settings = tomllib.loads(_preset_text(base))
    values = overrides if isinstance(overrides, Mapping) else dict(map(pair, overrides))
    return parse(nested(values, settings))


def nested(flat: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings with dotted keys put into their tables, over those that are there."""
    tables = {key: nested({}, value) if isinstance(value, dict) else value for key, value in (settings or {}).items()}
    for key, value in flat.items():
        *names, last = key.split(".")
        table = tables
        for name in names:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {key}={value}: {name} is a single value, not a table of settings")
        table[last] = value
    return tables


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one table of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def pair(override: str) -> tuple[str, Any]:
    """Return the key and the value of a ``key=value`` pair; what is not TOML is a bare word, as in device=cpu."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: should be KEY=VALUE, such as rounds=5 or local.lr=0.05")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text


def settings_of(config: Config, *, results_only: bool = False) -> dict[str, Any]:
    """Return everything that is set for the parts of this experiment; perhaps only what its results depend on."""
    core = [name for name in Config.model_fields if not (name == "privacy" and config.privacy.unit == "none")]
    if not METHODS[config.algorithm].masks:
        core.remove("codec")
    flat = flattened(config.model_dump(exclude_none=True, include={*core, *config.tables()}))
    return nested({key: value for key, value in flat.items() if not results_only or changes_results(key)})


def to_toml(config: Config) -> str:
    """Return the complete configuration as TOML that ``load`` reads back."""
    return tomli_w.dumps(settings_of(config))


def presets() -> dict[str, str]:
    """Return the names of the presets and what each is, from the first comment line of its file."""
    files = (f for f in (resources.files("fedpm.config") / "presets").iterdir() if f.name.endswith(".toml"))
    return {
        f.name.removesuffix(".toml"): f.read_text().splitlines()[0].lstrip("# ")
        for f in sorted(files, key=lambda f: f.name)
    }


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


def resolved(config: Config) -> Config:
    """Return the configuration with the algorithm's tuned values in place of ``auto``."""
    method = METHODS[config.algorithm]
    tuned = method.private.get(config.privacy.unit, method.tuned)
    flat = flattened(config.model_dump())
    return parse(nested({key: value for key, value in tuned.items() if flat.get(key) == "auto"}, config.model_dump()))
