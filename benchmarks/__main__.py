"""``python -m benchmarks [NAME...] [--out FILE]``: measure the library on this machine."""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Row
from fedpm.errors import ConfigError, FedPMError
from fedpm.files import write_atomically

MEASUREMENTS = {
    "startup": "what a user waits for at first",
    "step": "a masked training step beside a dense one (processor time of one core)",
    "whitening": "a step on whitened gradients beside a plain one (processor time of one core)",
    "round": "a whole round beside its bare steps, and beside research code (processor time of one core)",
    "features": "frozen lower layers that run once: a client with and without (processor time of one core)",
    "workers": "two worker processes beside one, and beside two threads (by the clock)",
    "studies": "twelve short runs of a study beside a program for each (by the clock)",
    "coder_speed": "mask coders on one upload, beside xz and zstd on packed bits (M/s: million parameters a second)",
    "secure_sum": "masks of CONV-4 summed in secret by 10 and 100 clients (processor time of one core)",
    "server": "decoding and adding up uploads, and sampling clients (processor time of one core)",
    "server_cores": "100 uploads of CONV-6 decoded by the server alone, and by two processes beside it (by the clock)",
    "norms": "uploads of ResNet-18 beside their masks: what norm statistics add",
    "partition": "60,000 labels split over 10,000 clients (processor time of one core)",
    "memory": "memory in use over many short rounds",
    "million": "a million clients of which some take part, loaded when they do (processor time of one core)",
}
"""Modules with a function ``run`` that returns a table; all of them take about 20 minutes."""
SCRIPTS = {
    "attacks": "clients that lie: accuracy by attack, number of liars and aggregation rule",
    "coder_bits": "bits of every mask coder for the very masks of one run, and what relative-entropy coding distorts",
    "drills": "faults, power cuts and kills of short runs, which lose nothing",
    "flower_traffic": "bytes on the wire beside payload bytes, on a fleet of two SuperNodes",
    "fuzz": "damaged messages and model files, many times over",
    "private_digits": "accuracy against ε on the digits",
    "rates": "settings of FedPM on training images that nobody trains on",
    "start": "how alike inputs look behind the layers of an untrained network, by where θ starts",
    "tune": "rates of each algorithm, by validation accuracy on the digits",
}
"""Modules with a function ``main`` that takes options of its own."""
DESCRIPTION = "\n".join(
    [
        "Measurements, of which all run where none is named (about 20 minutes):",
        *(f"  {name:<16}{text}" for name, text in MEASUREMENTS.items()),
        "Scripts, which run alone, each with options of its own (python -m benchmarks NAME --help):",
        *(f"  {name:<16}{text}" for name, text in SCRIPTS.items()),
    ]
)


def main(arguments: list[str]) -> None:
    """Run the one script that is named first, or the named measurements, or all of these."""
    if arguments and arguments[0] in SCRIPTS:
        script = import_module(f"benchmarks.{arguments[0]}")
        script.main(_parser(f" {arguments[0]}", script.__doc__), arguments[1:])
        return
    parser = _parser("", DESCRIPTION)
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the figures to this file, as JSON")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name in SCRIPTS:
            raise ConfigError(f"{name} has options of its own and runs alone: python -m benchmarks {name} --help")
        if name not in MEASUREMENTS:
            known = ", ".join([*MEASUREMENTS, *SCRIPTS])
            raise ConfigError(f"{name}: there is no such benchmark; there are: {known}")
    measure(options.names or list(MEASUREMENTS), options.out)


def measure(names: list[str], out: Path | None) -> None:
    """Print the tables of some measurements, and keep what is done so far as JSON."""
    tables: dict[str, list[Row]] = {}
    for name in names:
        tables[name] = import_module(f"benchmarks.{name}").run()
        Console().print(_table(f"{name}: {MEASUREMENTS[name]}", tables[name]))
        if out is not None:
            write_atomically(out, (json.dumps(tables, indent=2) + "\n").encode())


def _table(title: str, rows: list[Row]) -> Table:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    return table


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parser(name: str, description: str | None) -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m benchmarks{name}", description=description, formatter_class=layout)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedPMError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
