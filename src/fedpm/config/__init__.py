"""Settings: typed tables, read from presets, TOML files and ``key=value`` pairs, written back as TOML.

Everything wrong with a configuration is reported at once. Configuration ends in ``experiment.build``: no package below
imports this one.
"""

from fedpm.config.explain import describe
from fedpm.config.loading import (
    Base,
    check_used,
    flattened,
    load,
    nested,
    pair,
    parse,
    presets,
    resolved,
    settings_of,
    to_toml,
)
from fedpm.config.schema import LENGTH, Config, changes_results

__all__ = [
    "LENGTH",
    "Base",
    "Config",
    "changes_results",
    "check_used",
    "describe",
    "flattened",
    "load",
    "nested",
    "pair",
    "parse",
    "presets",
    "resolved",
    "settings_of",
    "to_toml",
]
