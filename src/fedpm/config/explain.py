"""What keys there are, and what is wrong with a configuration: a line a key, all faults at once."""

import difflib
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedpm.config.schema import config_class, keys
from fedpm.registry import AGGREGATORS, CODERS, ENGINES, METHODS, Registry, Settings

PARTS = {parts.key: parts for parts in (METHODS, CODERS, AGGREGATORS, ENGINES)}
"""What each key that chooses a part can choose."""
_WORDS = {
    "valid integer": "whole number",
    "valid number": "number",
    "valid boolean": "truth value, true or false",
    "valid string": "text",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""What pydantic says, and what a reader is told."""
MEANT = {
    "learning_rate": "local.lr",
    "batch": "local.batch_size",
    "epoch": "local.epochs",
    "num_epochs": "local.epochs",
    "n_clients": "clients.total",
    "num_clients": "clients.total",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "num_workers": "workers",
    "random_state": "seed",
    "dataset": "data.name",
}
"""What other programs call a key."""
_SHOWN = 80
"""Characters of a value in a message."""


def describe() -> list[tuple[str, str, str]]:
    """Return every key with its default and its meaning, with the choices where there are several."""
    return [(key, *_describe(key, field)) for key, field in keys().items()]


def _describe(key: str, field: FieldInfo) -> tuple[str, str]:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    meaning = field.description or ""
    if key in PARTS:
        meaning += f" ({_parts(PARTS[key])})"
    elif len(choices) > 1:
        meaning += f" ({', '.join(choices)})"
    return "" if field.default is None else str(field.default), meaning


def _parts(parts: Registry[Any]) -> str:
    return "; ".join(f"{spec.name}: {spec.about}" for spec in parts)


def explain(error: ValidationError) -> str:
    """Turn pydantic's list of faults into a line a key: the key, its value, what is allowed."""
    known = list(keys())
    tables = {name for name, field in config_class().model_fields.items() if isinstance(field.default, Settings)}
    lines: dict[str, str] = {}
    for fault in error.errors():
        location = [str(part) for part in fault["loc"]]
        key = ".".join(location[:2] if location and location[0] in tables else location[:1])
        if fault["type"] == "extra_forbidden":
            table = isinstance(fault["input"], dict) and "." not in key
            hint = _hint(key, sorted(tables) if table else known)
            lines[key] = f"{key} = {_shown(fault['input'])}: unknown {'table' if table else 'key'}; {hint}"
        elif fault["type"] == "value_error":
            lines[fault["msg"]] = fault["msg"].removeprefix("Value error, ")
        elif key in tables:
            lines[key] = f"{key} = {_shown(fault['input'])}: is a table, of keys and values: {_examples(key)}"
        else:
            wanted = _plain(fault["msg"].removeprefix("Input "))
            if fault["type"] == "literal_error":
                wanted += _path(key, fault["input"]) or _near(fault["input"], wanted)
            also = wanted.removeprefix("should be ")
            lines[key] = f"{lines[key]}, or {also}" if key in lines else f"{key} = {_shown(fault['input'])}: {wanted}"
    return "\n".join(lines.values())


def _plain(wanted: str) -> str:
    """Return what is allowed in the words of this program."""
    for theirs, ours in _WORDS.items():
        wanted = wanted.replace(theirs, ours)
    return wanted


def _path(key: str, value: Any) -> str:
    """Return how a path goes in that stands where the name of data should."""
    if key != "data.name" or not any(mark in str(value) for mark in "./\\"):
        return ""
    return f"; files of your own go in with data.name=folder, data.path={value}"


def _near(value: Any, wanted: str) -> str:
    """Return which of several names was likely meant."""
    near = difflib.get_close_matches(str(value), wanted.split("'")[1::2], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _examples(table: str) -> str:
    """Return how keys of a table are set, in Python and on the command line."""
    name = next(key for key in keys() if key.startswith(f"{table}.")).partition(".")[2]
    return f'{table}={{"{name}": …}} in Python, --set {table}.{name}=… on the command line'


def _shown(value: Any) -> str:
    """Return a value on one line: in Python a whole network may stand where a table should."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _hint(key: str, known: list[str]) -> str:
    """Return which key was meant: one of this name in some table or program, or one that is spelt like it."""
    same = [one for one in known if one == MEANT.get(key.rpartition(".")[2]) or one.endswith(f".{key}")]
    near = same if len(same) == 1 else difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else "fedpm keys lists them"
