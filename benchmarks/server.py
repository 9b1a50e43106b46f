"""What the server costs: time and memory as functions of the clients K of a round, and of all N that there are."""

import tracemalloc
from collections.abc import Iterator
from time import process_time

from tests.makers import upload

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.timing import Row
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.rng import Streams

COUNTS = (10, 100, 1000)


def run() -> list[Row]:
    """Measure the aggregation of K uploads of CONV-6, and the sampling of 100 clients among a million."""
    method = fedpm_of(noise_experiment("CONV-6, 32×32", clients=1, steps=1))
    state = method.init()
    rows = [_aggregation(method, state, count) for count in COUNTS]
    started = process_time()
    Streams(0).at(1).choice("clients", 1_000_000, 100)
    rows.append({"case": "sampling 100 of 1,000,000 clients", "seconds": process_time() - started})
    return rows


def _aggregation(method: FedPM, state: MaskState, count: int) -> Row:
    encoding, decoding = [0.0], [0.0]

    def updates() -> Iterator[MaskUpdate]:
        for client in range(count):
            started = process_time()
            payload = upload(method, state, client)
            encoding[0] += process_time() - started
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
        "case": f"K = {count} uploads of CONV-6",
        "peak MB": peak / 1e6,
        "decoding ms an upload": 1000 * decoding[0] / count,
        "decoded M/s": method.network.size * count / decoding[0] / 1e6,
        "the rest, broadcasts among it, s": total - encoding[0] - decoding[0],
        "broadcast bpp": 8 * len(broadcast) / method.network.size,
    }
