"""What a run writes down: a record of each round, and a summary (docs/records.md)."""

from typing import Any, NotRequired, TypedDict


class RoundRecord(TypedDict):
    """A line of ``rounds.jsonl``. Bytes are those of all clients of the round; bpp are bits per parameter."""

    round: int
    """The round's number, from 1."""
    clients: list[int]
    """Who was chosen."""
    accuracy: float
    """On test data, of the mode chosen on validation data."""
    loss: float | None
    """Mean cross-entropy there; null if it is not finite."""
    mode: str
    """Which network of the global state was best on validation data: sampled, thresholded or weights."""
    validation_accuracy: dict[str, float]
    """Of every mode."""
    uplink_bytes: int
    """Sent by clients, late uploads and those that could not be used included."""
    downlink_bytes: int
    """Sent to clients, what had to be sent again included."""
    uplink_bpp: float
    """Bits per parameter of an upload, the mean over the uploads that arrived."""
    downlink_bpp: float
    """Bits per parameter of a broadcast, the mean over the clients that were sent one."""
    downlink_ideal_bpp: float
    """What an ideal entropy coder would take for the broadcasts."""
    rejected: dict[str, str]
    """Clients whose upload could not be used, each with the reason."""
    faults: dict[str, int]
    """How many there were of each kind."""
    seconds: float
    """Of the whole round, by the clock."""
    train_loss: NotRequired[float | None]
    """Mean over clients of the loss of the last local epoch; not with privacy."""
    uplink_ideal_bpp: NotRequired[float | None]
    """What an ideal entropy coder would take for the uploads."""
    uplink_paper_bpp: NotRequired[float | None]
    """The paper's accounting of the uploads: the entropy of the symbols' frequencies."""
    uplink_kl_bpp: NotRequired[float | None]
    """KL(θ_k ‖ θ_g): the least that any coder with shared randomness could send (FedPM)."""
    epsilon: NotRequired[float]
    """ε spent so far, with privacy."""
    theta_histogram: NotRequired[list[int]]
    """Of the global θ around 0, 0.05, …, 1 (mask methods)."""
    theta_layers: NotRequired[list[float]]
    """The mean of the global θ in each layer (mask methods)."""


class Summary(TypedDict):
    """``summary.json``: the last round's scores, and the whole run's traffic."""

    accuracy: float
    loss: float | None
    mode: str
    validation_accuracy: dict[str, float]
    algorithm: str
    rounds: int
    """Rounds done."""
    parameters: int
    """Masked or trained parameters, d."""
    uplink_bytes: int
    downlink_bytes: int
    uplink_bpp: float
    """Mean over the rounds."""
    downlink_bpp: float
    """Mean over the rounds."""
    layers: list[dict[str, Any]]
    """Name and size of each layer, and the share of its weights that the final mask keeps."""
    model_bytes: int
    """Of the model file."""
    model_bpp: float
    """The same in bits per parameter."""
    seconds: float
    """Of all rounds."""
    privacy: NotRequired[dict[str, Any]]
    """What the run guarantees, with privacy."""
    versions: dict[str, str]
    """What made the result: versions, and the kind of machine."""


def figures(record: RoundRecord) -> str:
    """Return test accuracy, bits per parameter and client both ways, and the ε spent, if there is a budget."""
    up, down = record["uplink_bpp"], record["downlink_bpp"]
    spent = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
    return f"accuracy {record['accuracy']:.3f}  up {up:.3f} bpp  down {down:.3f} bpp{spent}"


def log_line(record: RoundRecord, rounds: int) -> str:
    """Return a round as a line of a log."""
    return f"round {record['round']}/{rounds}  {figures(record)}  {record['seconds']:.1f} s"


def complaints(record: RoundRecord) -> list[str]:
    """Return a sentence for each client whose upload was left out."""
    rejected = record["rejected"].items()
    return [f"round {record['round']}: left out the upload of client {client}: {reason}" for client, reason in rejected]
