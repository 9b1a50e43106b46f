"""What a run writes down: a record of each round, and a summary (docs/records.md)."""

import math
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

SCORES = ("accuracy", "loss", "mode", "validation_accuracy", "metrics", "validation_metrics", "lower")
"""The fields that say how good a network is: a run's are those of the shipped round."""
EACH = ("class_accuracy", "client_before", "client_after", "client_scores")
"""Those that say for whom."""
ScoreFields = dict[str, Any]
_NAMED = 10  # clients of one sentence


class RoundRecord(TypedDict):
    """A line of ``rounds.jsonl``. Bytes are those of all clients of the round; bpp are bits per parameter."""

    round: int
    """The round's number, from 1."""
    clients: list[int]
    """Who was chosen."""
    accuracy: NotRequired[float]
    """On test data, of the network that ``mode`` names; where accuracy is among the metrics."""
    loss: float | None
    """Mean of the task's loss there; null if it is not finite."""
    mode: str
    """The network of the global state that is shipped: calibrated, thresholded, sampled or weights; if several may be,
    the best on validation data."""
    validation_accuracy: NotRequired[dict[str, float]]
    """Of every mode; where accuracy is among the metrics."""
    metrics: NotRequired[dict[str, float | None]]
    """All metrics on test data by name, the first of which decides; where accuracy is not the only one."""
    validation_metrics: NotRequired[dict[str, dict[str, float | None]]]
    """The same on validation data, of every mode."""
    lower: NotRequired[list[str]]
    """Those of the metrics of which less is better, if any."""
    uplink_bytes: int
    """Sent by clients, late uploads and those that could not be used included."""
    downlink_bytes: int
    """Sent to clients, what had to be sent again included."""
    uplink_bpp: float
    """Bits per parameter of an upload, the mean over the uploads that arrived; a client's stages are one upload."""
    downlink_bpp: float
    """Bits per parameter of a broadcast, the mean over the clients that were sent one."""
    downlink_ideal_bpp: float
    """What an ideal entropy coder would take for the broadcasts."""
    rejected: dict[str, str]
    """Clients whose upload could not be used, or was left out by the aggregator, each with the reason."""
    faults: dict[str, int]
    """How many there were of each kind."""
    seconds: float
    """Of the whole round, by the clock."""
    train_loss: NotRequired[float | None]
    """Mean over clients of the loss of the last local epoch; not with privacy, nor with secure sums."""
    uplink_ideal_bpp: NotRequired[float | None]
    """What an ideal entropy coder would take for the uploads."""
    uplink_paper_bpp: NotRequired[float | None]
    """The paper's accounting of the uploads: the entropy of the symbols' frequencies."""
    uplink_kl_bpp: NotRequired[float | None]
    """KL(θ_k ‖ θ_g): the least that any coder with shared randomness could send (FedPM)."""
    class_accuracy: NotRequired[list[float | None]]
    """Of each class on test data, null for one that does not occur; where an example is of one class."""
    client_before: NotRequired[dict[str, float | None]]
    """The metric that decides, by client, on examples that it holds out, before its training (``evaluation.local``)."""
    client_after: NotRequired[dict[str, float | None]]
    """The same after its training, of the network that it trained."""
    client_scores: NotRequired[dict[str, float | None]]
    """The same of the network of this round, where clients score it (``evaluation.at = "clients"``)."""
    evaluation_uplink_bytes: NotRequired[int]
    """How much of ``uplink_bytes`` were scores of clients."""
    evaluation_downlink_bytes: NotRequired[int]
    """How much of ``downlink_bytes`` was sent to be scored."""
    names: NotRequired[list[str]]
    """Who was chosen, by the names that a federation's data give the clients."""
    epsilon: NotRequired[float]
    """ε spent so far, with privacy."""
    theta_histogram: NotRequired[list[int]]
    """Of the global θ around 0, 0.05, …, 1 (mask methods)."""
    theta_layers: NotRequired[list[float]]
    """The mean of the global θ in each layer (mask methods)."""


class Summary(TypedDict):
    """``summary.json``: the scores of the round whose model is shipped, and the whole run's traffic."""

    accuracy: NotRequired[float]
    loss: float | None
    mode: str
    validation_accuracy: NotRequired[dict[str, float]]
    metrics: NotRequired[dict[str, float | None]]
    validation_metrics: NotRequired[dict[str, dict[str, float | None]]]
    lower: NotRequired[list[str]]
    class_accuracy: NotRequired[list[float | None]]
    client_before: NotRequired[dict[str, float | None]]
    client_after: NotRequired[dict[str, float | None]]
    client_scores: NotRequired[dict[str, float | None]]
    worst_client: NotRequired[dict[str, Any]]
    """Of the clients that score the shipped network: name and score of the one that it serves worst."""
    round: int
    """The round whose model is shipped: the last, or with ``keep = "best"`` the best on validation data."""
    algorithm: str
    rounds: int
    """Rounds done."""
    ended: str
    """Why training ended: rounds, patience, callback, or budget (of privacy)."""
    parameters: int
    """Masked or trained parameters, d."""
    uplink_bytes: int
    downlink_bytes: int
    uplink_bpp: float
    """Mean over the rounds."""
    downlink_bpp: float
    """Mean over the rounds."""
    uplink_paper_bpp: NotRequired[float]
    """What the uploads would take by the paper's accounting, mean over the rounds that had any."""
    layers: list[dict[str, Any]]
    """Name and size of each layer, and the share of its weights that the final mask keeps."""
    model_bytes: int
    """Of the model file."""
    model_bpp: float
    """The same in bits per parameter."""
    seconds: float
    """Of all rounds."""
    repeatable: bool
    """Whether the seed repeats the run: not where clients drew from the operating system (``privacy.secret``)."""
    privacy: NotRequired[dict[str, Any]]
    """What the run guarantees, with privacy."""
    versions: dict[str, str]
    """What made the result: versions, and the kind of machine."""


def best_round(records: Sequence[RoundRecord]) -> RoundRecord:
    """Return the round that scored best on validation data, the last of several; test data are never chosen on.

    Few examples give many equal scores, and of those the model that has learned longer is the better guess.
    """
    return max(reversed(records), key=_validated)


def rounds_without_gain(records: Sequence[RoundRecord]) -> int:
    """Return how many rounds ago the best score on validation data was reached first."""
    return records[-1]["round"] - max(records, key=_validated)["round"] if records else 0


def _validated(record: RoundRecord) -> float:
    """Return the metric that decides, on validation data, as a number that is higher where it is better."""
    if "validation_metrics" not in record:
        return record["validation_accuracy"][record["mode"]]
    name, value = next(iter(record["validation_metrics"][record["mode"]].items()))
    if value is None:
        return -math.inf
    return -value if name in record.get("lower", ()) else value


def scores_of(record: RoundRecord | Summary) -> ScoreFields:
    """Return the fields that say how good a network is."""
    return {key: record[key] for key in SCORES if key in record}  # type: ignore[literal-required]


def clients_of(record: RoundRecord) -> ScoreFields:
    """Return the fields that say how good a network is for each class and each client, and for whom it is worst."""
    fields: ScoreFields = {key: record[key] for key in EACH if key in record}  # type: ignore[literal-required]
    known = fields.get("client_scores") or fields.get("client_before") or {}
    scores = {client: score for client, score in known.items() if score is not None}
    if not scores:
        return fields
    names = dict(zip(map(str, record["clients"]), record.get("names", ()), strict=False))
    first = next(iter(record.get("metrics", ())), "accuracy")
    worst = (max if first in record.get("lower", ()) else min)(scores, key=lambda client: scores[client])
    return {**fields, "worst_client": {"client": names.get(worst, worst), first: scores[worst]}}


def headline(record: RoundRecord | Summary, digits: int = 3) -> str:
    """Return name and value, on test data, of the metric that decides."""
    metrics: dict[str, float | None] = record.get("metrics") or {"accuracy": record["accuracy"]}
    name, value = next(iter(metrics.items()))
    return f"{name} {'–' if value is None else f'{value:.{digits}f}'}"


def figures(record: RoundRecord) -> str:
    """Return the metric that decides, bits per parameter and client both ways, and the ε spent, if there is any."""
    up, down = record["uplink_bpp"], record["downlink_bpp"]
    spent = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
    return f"{headline(record)}  up {up:.3f} bpp  down {down:.3f} bpp{spent}"


def log_line(record: RoundRecord, rounds: int) -> str:
    """Return a round as a line of a log."""
    return f"round {record['round']}/{rounds}  {figures(record)}  {record['seconds']:.1f} s"


def complaints(record: RoundRecord) -> list[str]:
    """Return a sentence for each reason for which uploads were left out, with the clients of whom that holds."""
    names = dict(zip(map(str, record["clients"]), record.get("names", ()), strict=False))
    alike: dict[str, list[str]] = {}
    for client, reason in record["rejected"].items():
        alike.setdefault(reason, []).append(names.get(client, client))
    return [
        f"round {record['round']}: left out the upload{'s' * (len(who) > 1)} of client{'s' * (len(who) > 1)} "
        f"{', '.join(who[:_NAMED])}{f' and {len(who) - _NAMED} more' if len(who) > _NAMED else ''}: {reason}"
        for reason, who in alike.items()
    ]


def useless(record: RoundRecord) -> bool:
    """Return whether a round had no upload that could be used: all of its clients were left out."""
    return len(record["rejected"]) >= len(record["clients"])


def diverged(record: RoundRecord) -> bool:
    """Return whether that was because training diverged; that nobody was there may happen in a fleet."""
    return useless(record) and "diverged" in record["faults"]


def in_rounds(count: int) -> str:
    """Return a number of rounds in words."""
    return f"{count} round{'s' if count != 1 else ''}"


def byte_size(count: float) -> str:
    """Return a number of bytes with three digits and its unit."""
    for unit in ("bytes", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
