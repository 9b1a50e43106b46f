"""One round: what passes between server and clients, how much of it can be used, and what came of it."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fedpm.engines.base import Engine, Fault, Reply, Task
from fedpm.errors import EngineError, WireError
from fedpm.experiment.build import Experiment
from fedpm.experiment.decoding import Decoders, decoded
from fedpm.experiment.judging import finite, scores_at_clients, scores_at_server, tasks_of
from fedpm.experiment.record import RoundRecord
from fedpm.experiment.statistics import theta_statistics
from fedpm.methods.base import ClientResult, Method, Staged, Stages, Waiting
from fedpm.methods.mask.sums import MaskSum, SummedFedPM

T = TypeVar("T")
METRICS = {"train_loss", "uplink_ideal_bpp", "uplink_paper_bpp", "uplink_kl_bpp"}
"""What clients may report of themselves (docs/records.md), of which the mean is written down."""
LOCAL = {"client_before", "client_after"}
"""And of which each client's is."""


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
    local: dict[str, dict[str, float | None]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def accepted(
        self, method: Method[Any, Any], state: Any, replies: Iterator[Reply], decoders: Decoders | None = None
    ) -> Iterator[Any]:
        """Yield the decoded updates one at a time; what is none is counted and left out, down to the quorum."""
        usable = 0
        for reply, update in decoded(method, state, replies) if decoders is None else decoders.decoded(state, replies):
            usable += self._taken(reply, update)
            if not isinstance(update, WireError):
                yield update
        self._require_quorum(state.round + 1, usable)

    def summed(self, state: Any, replies: Iterator[Reply], decoders: Decoders) -> Iterator[MaskSum]:
        """Yield the sum of the masks of a round, if there are any, of which processes added up some each."""
        came, total = decoders.summed(state, replies)
        usable = sum(self._taken(reply, why) for reply, why in came)
        self._require_quorum(state.round + 1, usable)
        if total is not None:
            yield total

    def _taken(self, reply: Reply, update: object) -> bool:
        """Count a reply, and note what is claimed beside an update, or why it is none."""
        self._count(reply)
        if isinstance(update, WireError):
            self._leave_out(reply.client, update)
        elif isinstance(reply.answer, ClientResult):
            self._note(reply.client, reply.answer)
        return not isinstance(update, WireError)

    def staged(self, stages: Stages, engine: Engine, round: int, tasks: list[Task]) -> Iterator[Any]:
        """Yield the one update of a round in several stages; who falls out is counted, down to the quorum."""
        stage = 0
        while tasks:
            waiting: dict[int, Waiting | None] = {}
            for reply in engine.run(round, tasks):
                self._count(reply, stage)
                try:
                    answer = self._answer(reply)
                    stages.receive(reply.client, answer.payload)
                except WireError as error:
                    self._leave_out(reply.client, error, stages)
                    continue
                waiting[reply.client] = answer.waiting
            stage += 1
            told = self._step(round, stages.advance)
            tasks = [Task(client, told[client], stage=stage, waiting=waiting[client]) for client in told]
        self._require_quorum(round, sum(map(stages.has, self.clients)))
        yield self._step(round, stages.update)

    def _step(self, round: int, step: Callable[[], T]) -> T:
        """Go on, or say in which round that failed and who had been left out."""
        try:
            return step()
        except EngineError as error:
            raise EngineError(f"round {round}: {error}; left out so far: {self.rejected or 'nobody'}") from None

    def _leave_out(self, client: int, error: WireError, stages: Stages | None = None) -> None:
        """Count a fault; the reason is noted unless what the client sent counts all the same."""
        self.faults[error.kind] += 1
        if stages is None or not stages.has(client):
            said = self.rejected.get(str(client))
            self.rejected[str(client)] = f"{said}; {error}" if said else str(error)

    def _require_quorum(self, round: int, usable: int) -> None:
        if usable < self.quorum:
            raise EngineError(
                f"round {round}: {usable} of {len(self.clients)} clients gave an answer that can be used, "
                f"fewer than the quorum of {self.quorum} (flower.quorum): {self.rejected}; continue when they are well"
            )

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Note whom the rule left out after all uploads were there, and why."""
        for client, reason in reasons.items():
            said = self.rejected.get(str(client))
            self.rejected[str(client)] = f"{said}; {reason}" if said else reason
            self.faults["outlier"] += 1

    def _count(self, reply: Reply, stage: int = 0) -> None:
        """Count what really passed, whether or not it can be used; a client's stages are one upload and broadcast."""
        self.downlink_bytes += reply.sent
        self.broadcasts += reply.sent > 0 and not stage
        self.uplink_bytes += reply.received
        self.uploads += reply.received > 0 and not stage

    def _answer(self, reply: Reply) -> ClientResult:
        if isinstance(reply.answer, Fault):
            raise WireError(reply.answer.reason, reply.answer.kind)
        return reply.answer

    def _note(self, client: int, answer: ClientResult) -> None:
        for name in METRICS & answer.metrics.keys():  # a client may claim anything
            self.metrics.setdefault(name, []).append(answer.metrics[name])
        for name in LOCAL & answer.metrics.keys():
            self.local.setdefault(name, {})[str(client)] = finite(answer.metrics[name])

    def local_scores(self) -> dict[str, Any]:
        """Return what each client scored before and after its training, on examples of its own."""
        return dict(sorted(self.local.items()))

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


def run_round(
    experiment: Experiment, engine: Engine, state: Any, decoders: Decoders | None = None
) -> tuple[Any, RoundRecord]:
    """Sample clients, broadcast, train, aggregate, evaluate."""
    started = time.perf_counter()
    method, number = experiment.method, state.round + 1
    chosen = experiment.participation.of(number)
    tasks, ideal_bits = tasks_of(method, state, chosen)
    exchange = Exchange(chosen, engine.quorum, ideal_bits)
    if isinstance(method, Staged):
        updates = exchange.staged(method.stages(state), engine, number, tasks)
    elif decoders is not None and isinstance(method, SummedFedPM):
        updates = exchange.summed(state, engine.run(number, tasks), decoders)
    else:
        updates = exchange.accepted(method, state, engine.run(number, tasks), decoders)
    state = method.aggregate(state, updates)
    exchange.leave_out(getattr(state, "rejected", {}))
    scores = (
        scores_at_server(experiment, state)
        if experiment.scored_at == "server"
        else scores_at_clients(experiment, engine, state, chosen)
    )
    traffic = exchange.traffic(method.network.size)
    for way in ("uplink_bytes", "downlink_bytes"):
        traffic[way] += scores.get(f"evaluation_{way}", 0)
    figures = {
        "round": number,
        **scores,
        **traffic,
        **exchange.local_scores(),
        **theta_statistics(method, state),
        **_names(experiment, chosen),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return state, cast(RoundRecord, figures)


def _names(experiment: Experiment, chosen: list[int]) -> dict[str, list[str]]:
    """Return the names of the chosen, where clients have some."""
    names = experiment.clients.names
    return {"names": [names[client] for client in chosen]} if names else {}
