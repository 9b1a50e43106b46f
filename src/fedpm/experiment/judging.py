"""How good the network of a round is: scored at the server, or at the clients that hold examples out."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedpm.engines.base import Engine, Fault, Task
from fedpm.engines.scoring import Scores, by_mode, read_scores
from fedpm.errors import EngineError, WireError
from fedpm.experiment.build import Experiment
from fedpm.methods.base import Method
from fedpm.training.device import threads
from fedpm.training.evaluation import Score, averaged, evaluate


def finite(value: float) -> float | None:
    """Return a float that JSON can hold: a diverged loss becomes null."""
    return value if math.isfinite(value) else None


def tasks_of(method: Method[Any, Any], state: Any, chosen: list[int]) -> tuple[list[Task], float]:
    """Return each client's broadcast, one that builds on what it holds if it can, and the ideal bits of them all."""
    holders = method.holders(state)
    since = [holders.get(client) for client in chosen]
    forms = {round: method.broadcast(state, since=round) for round in set(since)}
    memory = method.memory(state)
    tasks = [Task(c, forms[s].payload, memory if s else b"") for c, s in zip(chosen, since, strict=True)]
    return tasks, sum(forms[s].ideal_bits for s in since)


def scores_at_clients(experiment: Experiment, engine: Engine, state: Any, chosen: list[int]) -> dict[str, Any]:
    """Let the clients of a round score its network on what they hold out, and average that by examples.

    They are sent the next broadcast for it, and what passes is counted. Test examples are theirs too if those are a
    share of each client's, else the server's.
    """
    method, number, sent, received = experiment.method, state.round + 1, 0, 0
    tasks = [replace(task, score=True) for task in tasks_of(method, state, chosen)[0]]
    answers: dict[int, Scores] = {}
    for reply in engine.run(number, tasks):
        sent, received = sent + reply.sent, received + reply.received
        if not isinstance(reply.answer, Fault):
            try:
                answers[reply.client] = read_scores(
                    method,
                    experiment.task,
                    len(experiment.dataset.classes),
                    seed=experiment.seed,
                    round=number,
                    client=reply.client,
                    payload=reply.answer.payload,
                )
            except WireError:  # it counts nowhere but in the bytes
                continue
    each = by_mode(answers, "validation")
    if not each:
        raise EngineError(
            f"round {state.round}: no client sent scores of its validation examples; give clients more examples, or "
            "use evaluation.at = 'server'"
        )
    validation = {mode: averaged(scores) for mode, scores in each.items()}
    best = max(method.final_modes, key=lambda mode: validation[mode].rank)
    own = by_mode(answers, "test")
    with threads(experiment.clients.threads):
        test = averaged(own[best]) if own else _tested(experiment, state, best)
    part, first = "test" if own else "validation", experiment.task.first.name
    scored = {str(client): scores[part][best] for client, scores in sorted(answers.items()) if part in scores}
    return {
        **score_fields(best, test, validation),
        "client_scores": {client: finite(score.values[first]) for client, score in scored.items()},
        "evaluation_uplink_bytes": received,
        "evaluation_downlink_bytes": sent,
    }


def _tested(experiment: Experiment, state: Any, mode: str) -> Score:
    """Score a mode on test data of the server's own."""
    module = experiment.method.module(state, mode)
    return evaluate(module, experiment.dataset.test, experiment.device, experiment.task)


def scores_at_server(experiment: Experiment, state: Any) -> dict[str, Any]:
    """Score every mode on validation data, and on test data only the mode chosen there."""
    method, device = experiment.method, experiment.device
    with threads(experiment.clients.threads):
        scores = {
            mode: evaluate(method.module(state, mode), experiment.validation, device, experiment.task)
            for mode in method.modes
        }
        best = max(method.final_modes, key=lambda mode: scores[mode].rank)
        test = _tested(experiment, state, best)
    return score_fields(best, test, scores)


def score_fields(mode: str, test: Score, validation: Mapping[str, Score]) -> dict[str, Any]:
    """Return the scores of a round as its record has them."""
    fields: dict[str, Any] = {"loss": finite(test.loss), "mode": mode}
    if "accuracy" in test.values:
        accuracies = {mode: score.accuracy for mode, score in validation.items()}
        fields = {"accuracy": test.accuracy, **fields, "validation_accuracy": accuracies}
    if list(test.values) != ["accuracy"]:
        fields["metrics"] = _finite(test.values)
        fields["validation_metrics"] = {mode: _finite(score.values) for mode, score in validation.items()}
    lower = [metric.name for metric in test.task.metrics if metric.lower]
    fields |= {"lower": lower} if lower else {}
    return {**fields, **({"class_accuracy": by_class(test)} if test.classes else {})}


def by_class(score: Score) -> list[float | None]:
    """Return the share of each class that was met, None of one that did not occur."""
    return [met / there if there else None for met, there in score.classes]


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in values.items()}
