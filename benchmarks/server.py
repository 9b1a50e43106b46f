"""What the server costs: time and memory as functions of the clients K of a round, and of all N that there are."""

import tracemalloc
from collections.abc import Iterator
from time import process_time

import numpy as np
from fedpm.wire.coders.table import CODERS

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.timing import Row
from fedpm.methods.mask.fedpm import FedPM, FedPMState, Update
from fedpm.rng import Streams
from fedpm.wire.message import Kind, Message

COUNTS = (10, 100, 1000)


def run() -> list[Row]:
    """Measure the aggregation of K uploads of CONV-6, and the sampling of 100 clients among a million."""
    algorithm = fedpm_of(noise_experiment("CONV-6, 32×32", clients=1, steps=1))
    state = algorithm.init()
    rows = [_aggregation(algorithm, state, count) for count in COUNTS]
    started = process_time()
    Streams(0).at(1).choice("clients", 1_000_000, 100)
    rows.append({"case": "sampling 100 of 1,000,000 clients", "seconds": process_time() - started})
    return rows


def _aggregation(algorithm: FedPM, state: FedPMState, count: int) -> Row:
    encoding, decoding = [0.0], [0.0]

    def updates() -> Iterator[Update]:
        for client in range(count):
            started = process_time()
            payload = upload(algorithm, state, client)
            encoding[0] += process_time() - started
            started = process_time()
            update = algorithm.decode(state, client, payload)
            decoding[0] += process_time() - started
            yield update

    tracemalloc.start()
    started = process_time()
    after = algorithm.aggregate(state, updates())
    total = process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    broadcast = algorithm.broadcast(after).payload
    return {
        "case": f"K = {count} uploads of CONV-6",
        "peak MB": peak / 1e6,
        "decoding ms an upload": 1000 * decoding[0] / count,
        "decoded M/s": algorithm.masked.size * count / decoding[0] / 1e6,
        "the rest, broadcasts among it, s": total - encoding[0] - decoding[0],
        "broadcast bpp": 8 * len(broadcast) / algorithm.masked.size,
    }


def upload(algorithm: FedPM, state: FedPMState, client: int) -> bytes:
    """Return an upload whose θ_k lies between θ_g and a random one; no training needed."""
    known = algorithm.known(state, client)
    noise = Streams(99).at(known.shared.round, client).uint32("θ", algorithm.masked.size) / 2**32
    theta = (0.95 * known.belief.theta() + 0.05 * noise).astype(np.float32)
    number, coder = CODERS[algorithm.codec]
    _, coded = coder.encode(theta, known, known.shared)
    stats = np.arange(algorithm.masked.stats_size, dtype=np.float32)
    fingerprint = algorithm.masked.fingerprint(algorithm.seed)
    return Message(Kind.UPLOAD, number, fingerprint, known.shared.round, client, coded.data, stats).to_bytes()
