"""Damage messages and model files many times over and see what the decoders do.

python -m benchmarks fuzz --mutations 100000
python -m benchmarks fuzz --mutations 100000 --only file
python -m benchmarks fuzz --mutations 100000 --only secure
python -m benchmarks fuzz --atheris 120          # coverage-guided, for so many seconds (pip install atheris)
"""

import argparse
import random
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from fedpm.errors import ArtifactError, WireError

if TYPE_CHECKING:
    from tests.fuzzing import Target


def mutate(targets: list["Target"], count: int) -> None:
    """Damage messages at random; half of them get a mended checksum, to reach the decoders."""
    from tests.fuzzing import damaged, strangers

    rng = random.Random(0)
    others = {target.name: strangers(target, targets) for target in targets}
    right = {target.name: target.read(target.genuine) for target in targets}
    refused = same = other = 0
    slowest = 0.0
    for number in range(count):
        target = rng.choice(targets)
        data = damaged(target.genuine, others[target.name], rng)
        mend = number % 2 == 1
        started = time.perf_counter()
        try:
            result = target.read(target.forged(data) if mend else data)
        except (WireError, ArtifactError):
            refused += 1
        else:
            same += result == right[target.name]
            other += result != right[target.name]
            if result != right[target.name] and not mend:
                sys.exit(f"read wrongly as {target.name}: {data.hex()}")
        slowest = max(slowest, time.perf_counter() - started)
    print(f"{count} damaged: {refused} refused, {same} read as meant, none read wrongly, no crash")
    print(f"{other} forged ones (checksum mended) decoded to another value; slowest decode {slowest * 1e3:.1f} ms")


def guided(targets: list["Target"], seconds: int) -> None:
    """Let atheris search for inputs that crash a decoder behind the checksum."""
    import atheris

    def one(data: bytes) -> None:
        if data:
            target = targets[data[0] % len(targets)]
            with suppress(WireError, ArtifactError):
                target.read(target.forged(data[1:]))

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096"], one)
    atheris.Fuzz()


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run one of the two."""
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--only", default="", metavar="WORD", help="targets whose name contains this, such as file")
    parser.add_argument("--atheris", type=int, metavar="SECONDS")
    options = parser.parse_args(arguments)
    instrumented = nullcontext()
    if options.atheris:
        import atheris

        instrumented = atheris.instrument_imports(include=["fedpm"])
    with instrumented:  # decoders are imported only now, so that atheris sees their branches
        from tests.fuzzing import targets
        from tests.secure.fuzzing import secure_targets
    chosen = [target for target in targets() + secure_targets() if options.only in target.name]
    if options.atheris:
        guided(chosen, options.atheris)
    else:
        mutate(chosen, options.mutations)
