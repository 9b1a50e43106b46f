"""What the server costs: time and memory as functions of the clients K of a round, and of all N that there are."""

import tracemalloc
from collections.abc import Iterator, Sequence
from time import process_time

from tests.makers import make_fedpm, upload
from torch import nn

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.timing import Row
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.rng import Streams

COUNTS = (10, 100, 1000)
MANY = (1000, 10_000)


def run() -> list[Row]:
    """Measure the aggregation of K uploads of CONV-6, and the sampling of 100 clients among a million."""
    method = fedpm_of(noise_experiment("CONV-6, 32×32", clients=1, steps=1))
    state = method.init()
    rows = [_aggregation(method, state, count) for count in COUNTS]
    rows += many(MANY)
    started = process_time()
    Streams(0).at(1).choice("clients", 1_000_000, 100)
    rows.append({"case": "sampling 100 of 1,000,000 clients", "seconds": process_time() - started})
    return rows


def many(counts: Sequence[int]) -> list[Row]:
    """Measure far more uploads, of a small network and the quickest coder."""
    method = make_fedpm(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), "frequency")
    state = method.init()
    return [_aggregation(method, state, count, "64-256-10") for count in counts]


def _aggregation(method: FedPM, state: MaskState, count: int, network: str = "CONV-6") -> Row:
    encoding, decoding, sent = [0.0], [0.0], [0]

    def updates() -> Iterator[MaskUpdate]:
        for client in range(count):
            started = process_time()
            payload = upload(method, state, client)
            encoding[0] += process_time() - started
            sent[0] += len(payload)
            started = process_time()
            update = method.decode(state, client, payload)
            decoding[0] += process_time() - started
            yield update

    tracemalloc.start()
    started = process_time()
    broadcast = method.broadcast(method.aggregate(state, updates())).payload
    total = process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "case": f"K = {count} uploads of {network}, {method.network.size:,} parameters",
        "MB of uploads": sent[0] / 1e6,
        "peak MB": peak / 1e6,
        "decoding ms an upload": 1000 * decoding[0] / count,
        "decoded M/s": method.network.size * count / decoding[0] / 1e6,
        "the rest, broadcasts among it, s": total - encoding[0] - decoding[0],
        "broadcast bpp": 8 * len(broadcast) / method.network.size,
    }
