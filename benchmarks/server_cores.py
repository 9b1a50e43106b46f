"""K uploads decoded and added up by the server alone and by processes beside it, in one run."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from statistics import median
from time import perf_counter, process_time

from tests.makers import upload

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.timing import Row
from fedpm.children import _processor_time
from fedpm.engines.base import Reply
from fedpm.experiment.decoding import Decoders
from fedpm.experiment.round import Exchange
from fedpm.methods.base import ClientResult
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState
from fedpm.methods.mask.sums import SummedFedPM, summed

CLIENTS, PROCESSES, REPEATS = 100, 2, 3
Way = tuple[FedPM, Decoders | None]


def run(clients: int = CLIENTS) -> list[Row]:
    """Measure K uploads of CONV-6 that are added up, on as many idle cores as there are processes."""
    method = fedpm_of(noise_experiment("CONV-6, 32×32", clients=1, steps=1))
    state, sums = method.init(), summed(method)
    uploads = [upload(method, state, client) for client in range(clients)]
    with closing(Decoders(method, PROCESSES)) as decoding, closing(Decoders(sums, PROCESSES)) as adding:
        ways: dict[str, Way] = {
            "the server alone": (method, None),
            f"{PROCESSES} decoders": (method, decoding),
            f"{PROCESSES} decoders, subtotals": (sums, adding),
        }
        taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        for _ in range(REPEATS):
            states = []
            for name, way in ways.items():
                started, own, theirs = perf_counter(), process_time(), _children(way)
                states.append(_aggregated(way, state, uploads))
                taken[name].append((perf_counter() - started, process_time() - own, _children(way) - theirs))
            if any((other.posterior.ones != states[0].posterior.ones).any() for other in states):
                raise ArithmeticError("another posterior")
        memory = {name: [_peak(way, state, uploads[:count]) for count in (10, clients)] for name, way in ways.items()}
    medians = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
    alone, work, _ = medians["the server alone"]
    return [
        {
            "case": f"K = {clients}, {name}",
            "seconds": clock,
            "alone / this, by the clock": alone / clock,
            "processor s of the server": own,
            "of the processes": theirs,
            "alone / this, from processor time": work / max(own, (own + theirs) / (PROCESSES if theirs else 1)),
            "peak MB, K = 10": memory[name][0],
            f"K = {clients}": memory[name][1],
        }
        for name, (clock, own, theirs) in medians.items()
    ]


def _aggregated(way: Way, state: MaskState, uploads: Sequence[bytes]) -> MaskState:
    method, decoders = way
    exchange, replies = Exchange(list(range(len(uploads)))), _replies(uploads)
    if decoders is not None and isinstance(method, SummedFedPM):
        return method.aggregate(state, exchange.summed(state, replies, decoders))
    return method.aggregate(state, exchange.accepted(method, state, replies, decoders))


def _replies(uploads: Sequence[bytes]) -> Iterator[Reply]:
    for client, payload in enumerate(uploads):
        yield Reply(client, ClientResult(payload), 0, len(payload))


def _children(way: Way) -> float:
    """Return the processor time of the processes that decode."""
    children = way[1]._children if way[1] else []
    return sum(_processor_time(child.process.pid or 0) for child in children)


def _peak(way: Way, state: MaskState, uploads: Sequence[bytes]) -> float:
    """Return the most MB that the server has allocated at once."""
    tracemalloc.start()
    _aggregated(way, state, uploads)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
