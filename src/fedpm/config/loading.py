"""Settings from presets, TOML files, mappings and ``key=value`` pairs, and back to TOML."""

import tomllib
import warnings
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedpm.config.explain import PARTS, explain
from fedpm.config.schema import Config, changes_results, config_class, keys
from fedpm.errors import ConfigError, choices
from fedpm.files import unreadable
from fedpm.registry import METHODS


def parse(settings: Mapping[str, Any]) -> Config:
    """Build a configuration from nested tables, or raise one ConfigError that lists all faults."""
    try:
        return config_class().model_validate(settings)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


Base = Config | Mapping[str, Any] | str | Path
"""What settings can start from: a configuration, tables or dotted keys, a preset's name, a TOML file's path."""


def load(base: Base | None = None, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Config:
    """Read settings and apply overrides: ``key=value`` pairs, or values by key, nested in tables or not."""
    values = overrides if isinstance(overrides, Mapping) else dict(map(pair, overrides))
    if isinstance(base, Config) and not values:
        return base
    tables, given = base.model_dump() if isinstance(base, Config) else _tables(base), flattened(values)
    config = parse(nested(given, tables))
    if values and (sentence := _outdated(tables, config, given)):
        warnings.warn(sentence, UserWarning, stacklevel=2)
    return config


def _outdated(tables: Mapping[str, Any], config: Config, given: Mapping[str, Any]) -> str:
    """Return that a file holds what ``auto`` came to before it was changed, and how to have it settled anew."""
    try:
        before = parse(tables)
    except ConfigError:  # only what is given makes it whole
        return ""
    rules, now = _tuned(before), _tuned(config)
    old, new = flattened(before.model_dump()), flattened(config.model_dump())
    kept = [key for key in rules if key in now and key not in given and old.get(key, "auto") != "auto"]
    stale = [key for key in kept if old[key] == _settled(rules[key], old) != _settled(now[key], new)]
    if not stale:
        return ""
    changed = ", ".join(f"{key} = {new[key]!r}" for key in given if new.get(key) != old.get(key))
    return (
        f"{', '.join(f'{key} = {old[key]!r}' for key in stale)}: what auto had come to, and with {changed} it would "
        f"come to something else; {' '.join(f'--set {key}=auto' for key in stale)} lets it"
    )


def _tables(base: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """Return the settings that a starting point gives, in their tables."""
    if base is None or isinstance(base, Mapping):
        return nested(flattened(base or {}))
    if isinstance(base, Path) or base.endswith(".toml"):
        return _read_toml(Path(base))
    return tomllib.loads(_preset_text(base))


def nested(flat: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings with dotted keys put into their tables, over those that are there."""
    tables = {key: nested({}, value) if isinstance(value, dict) else value for key, value in (settings or {}).items()}
    for key, value in flat.items():
        *names, last = key.split(".")
        table = tables
        for name in names:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key} = {value!r}: {name} is a single value, not a table of settings")
        table[last] = value
    return tables


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one table of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase on each dotted key that has another value now."""
    return [
        f"{key} = {now.get(key)!r} instead of {before.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def pair(override: str) -> tuple[str, Any]:
    """Return the key and the value of a ``key=value`` pair; what is not TOML is a bare word, as in device=cpu."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: should be KEY=VALUE, such as rounds=5 or local.lr=0.05")
    if not all(names := key.strip().split(".")):
        raise ConfigError(f"--set {override}: a dot too many; did you mean {'.'.join(filter(None, names))}={text}?")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text


def settings_of(config: Config, *, results_only: bool = False) -> dict[str, Any]:
    """Return everything that is set for the parts of this experiment; perhaps only what its results depend on."""
    core = list(Config.model_fields)
    if not METHODS[config.algorithm].masks:
        core.remove("codec")
    flat = flattened(config.model_dump(exclude_none=True, include={*core, *config.tables()}))
    if config.privacy.unit == "none":  # of that table only where randomness comes from means something
        flat = {key: value for key, value in flat.items() if key == "privacy.secret" or not key.startswith("privacy.")}
    known = keys()
    return nested({key: value for key, value in flat.items() if not results_only or changes_results(key, known)})


def to_toml(config: Config) -> str:
    """Return the complete configuration as TOML that ``load`` reads back."""
    return tomli_w.dumps(settings_of(config))


def check_used(given: Iterable[str], settled: Mapping[str, Any]) -> None:
    """Refuse keys of parts that an experiment does not have; ``settled`` are its settings, with every part chosen."""
    faults = []
    for key in given:
        table = key.partition(".")[0]
        if table in settled:
            continue
        owners = {parts.key: [spec.name for spec in parts if table in spec.tables] for parts in PARTS.values()}
        chooser = next(name for name, found in owners.items() if found or name == table)
        if chooser in settled:
            wanted = " or ".join(map(repr, owners[chooser]))
            there = f"but it is {settled[chooser]!r}: set that too, or leave this out"
            faults.append(f"{key} belongs to {chooser} = {wanted}, {there}")
        else:
            faults.append(f"{key} says how masks are coded, and algorithm = {settled['algorithm']!r} sends none")
    if faults:
        raise ConfigError("\n".join(faults))


def presets() -> dict[str, str]:
    """Return the names of the presets and what each is, from the first comment line of its file."""
    files = (f for f in (resources.files("fedpm.config") / "presets").iterdir() if f.name.endswith(".toml"))
    return {
        f.name.removesuffix(".toml"): f.read_text().splitlines()[0].lstrip("# ")
        for f in sorted(files, key=lambda f: f.name)
    }


def _preset_text(name: str) -> str:
    if name not in presets():
        raise ConfigError(f"{name}: there is no such preset; {choices(name, presets())}")
    return (resources.files("fedpm.config") / "presets" / f"{name}.toml").read_text()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        meant = "give a TOML file"
        if (path / "config.toml").is_file():
            meant = f"the settings of that run are {path / 'config.toml'}"
        elif str(path) in presets():
            meant = f"the preset of that name is --preset {path}"
        raise ConfigError(f"{unreadable(path, error)}; {meant}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None


def resolved(config: Config) -> Config:
    """Return the configuration with the algorithm's tuned values in place of ``auto``."""
    flat = flattened(config.model_dump())
    settled = {key: _settled(rule, flat) for key, rule in _tuned(config).items() if flat.get(key) == "auto"}
    return parse(nested(settled, config.model_dump()))


def _tuned(config: Config) -> dict[str, Any]:
    """Return what ``auto`` means for an algorithm by key: a value, or a function of all settings."""
    method = METHODS[config.algorithm]
    plain = {"model.init": "half", "local.lr_fade": 0.0, "aggregator": "mean", "average": 0.0}
    plain |= {"local.adam_beta1": 0.9, "local.adam_epsilon": 0.0, "local.whiten": False, "local.lookahead": 0.0}
    return {**plain, **method.private.get(config.privacy.unit, method.tuned)}


def _settled(rule: Any, flat: Mapping[str, Any]) -> Any:
    return rule(flat) if callable(rule) else rule
