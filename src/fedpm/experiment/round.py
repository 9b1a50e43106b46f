"""One round: what passes between server and clients, how much of it can be used, and what came of it."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from fedpm.engines.base import Engine, Fault, Reply, Task
from fedpm.errors import EngineError, WireError
from fedpm.experiment.build import Experiment
from fedpm.experiment.record import RoundRecord
from fedpm.experiment.statistics import theta_statistics
from fedpm.methods.base import Method
from fedpm.training.device import threads
from fedpm.training.evaluation import evaluate

METRICS = {"train_loss", "uplink_ideal_bpp", "uplink_paper_bpp", "uplink_kl_bpp"}
"""What clients may report of themselves (docs/records.md)."""


@dataclass
class Exchange:
    """What passed between server and clients in a round."""

    clients: list[int]
    quorum: int = 0
    downlink_ideal_bits: float = 0.0
    uplink_bytes: int = 0
    uploads: int = 0
    downlink_bytes: int = 0
    broadcasts: int = 0
    metrics: dict[str, list[float]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def accepted(self, method: Method[Any, Any], state: Any, replies: Iterator[Reply]) -> Iterator[Any]:
        """Yield the decoded updates one at a time; what is none is counted and left out, down to the quorum."""
        usable = 0
        for reply in replies:
            self._count(reply)
            try:
                update = self._update(method, state, reply)
            except WireError as error:
                said = self.rejected.get(str(reply.client))
                self.rejected[str(reply.client)] = f"{said}; {error}" if said else str(error)
                self.faults[error.kind] += 1
                continue
            usable += 1
            yield update
        if usable < self.quorum:
            raise EngineError(
                f"round {state.round + 1}: {usable} of {len(self.clients)} clients gave an answer that can be used, "
                f"fewer than the quorum of {self.quorum} (flower.quorum): {self.rejected}; continue when they are well"
            )

    def _count(self, reply: Reply) -> None:
        """Count what really passed, whether or not it can be used."""
        self.downlink_bytes += reply.sent
        self.broadcasts += reply.sent > 0
        self.uplink_bytes += reply.received
        self.uploads += reply.received > 0

    def _update(self, method: Method[Any, Any], state: Any, reply: Reply) -> Any:
        answer = reply.answer
        if isinstance(answer, Fault):
            raise WireError(answer.reason, answer.kind)
        update = method.decode(state, reply.client, answer.payload)
        for name in METRICS & answer.metrics.keys():  # a client may claim anything
            self.metrics.setdefault(name, []).append(answer.metrics[name])
        return update

    def traffic(self, size: int) -> dict[str, Any]:
        """Return bytes over all clients, bits per parameter of an upload and of a broadcast, and mean metrics."""
        up, down = (8 / (size * max(1, count)) for count in (self.uploads, self.broadcasts))
        return {
            **{name: _mean(values) for name, values in sorted(self.metrics.items())},
            "clients": self.clients,
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "uplink_bpp": self.uplink_bytes * up,
            "downlink_bpp": self.downlink_bytes * down,
            "downlink_ideal_bpp": self.downlink_ideal_bits / (size * len(self.clients)),
            "rejected": self.rejected,
            "faults": dict(self.faults),
        }


def _mean(values: list[float]) -> float | None:
    """Return the mean of what is finite, None of nothing: one client's word does not spoil the others'."""
    known = [value for value in values if math.isfinite(value)]
    return finite(sum(known) / len(known)) if known else None


def finite(value: float) -> float | None:
    """Return a float that JSON can hold: a diverged loss becomes null."""
    return value if math.isfinite(value) else None


def run_round(experiment: Experiment, engine: Engine, state: Any) -> tuple[Any, RoundRecord]:
    """Sample clients, broadcast, train, aggregate, evaluate."""
    started = time.perf_counter()
    method, number = experiment.method, state.round + 1
    chosen = experiment.participation.of(number)
    tasks, ideal_bits = _tasks(method, state, chosen)
    exchange = Exchange(chosen, engine.quorum, ideal_bits)
    state = method.aggregate(state, exchange.accepted(method, state, engine.run(number, tasks)))
    figures = {
        "round": number,
        **_scores(experiment, state),
        **exchange.traffic(method.network.size),
        **theta_statistics(method, state),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return state, cast(RoundRecord, figures)


def _tasks(method: Method[Any, Any], state: Any, chosen: list[int]) -> tuple[list[Task], float]:
    """Return each client's broadcast, one that builds on what it holds if it can, and the ideal bits of them all."""
    holders = method.holders(state)
    since = [holders.get(client) for client in chosen]
    forms = {round: method.broadcast(state, since=round) for round in set(since)}
    memory = method.memory(state)
    tasks = [Task(c, forms[s].payload, memory if s else b"") for c, s in zip(chosen, since, strict=True)]
    return tasks, sum(forms[s].ideal_bits for s in since)


def _scores(experiment: Experiment, state: Any) -> dict[str, Any]:
    """Score every mode on validation data, and on test data only the mode chosen there."""
    method, device = experiment.method, experiment.device
    with threads(experiment.clients.threads):
        scores = {mode: evaluate(method.module(state, mode), experiment.validation, device) for mode in method.modes}
        best = max(method.final_modes, key=lambda mode: scores[mode].rank)
        test = evaluate(method.module(state, best), experiment.dataset.test, device)
    return {
        "accuracy": test.accuracy,
        "loss": finite(test.loss),
        "mode": best,
        "validation_accuracy": {mode: score.accuracy for mode, score in scores.items()},
    }
