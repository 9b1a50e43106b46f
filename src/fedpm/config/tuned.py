"""What ``auto`` means for each algorithm: rates found on validation data (docs/baselines.md, benchmarks/tune.py)."""

from dataclasses import dataclass

from fedpm.config import Config


@dataclass(frozen=True)
class Tuned:
    """An algorithm's values of the keys that are ``auto``; a dense one's trains with ``optimiser``."""

    lr: float
    codec: str = "shared-randomness"
    optimiser: str = "adam"
    server_lr: float = 1.0
    lr_decay: float = 1.0
    server_decay: float = 1.0


TUNED = {
    "fedpm": Tuned(lr=0.1),
    "fedmask": Tuned(lr=0.05, codec="side-information"),
    "fedavg": Tuned(lr=0.001),
    "signsgd": Tuned(lr=0.03, optimiser="sgd", server_lr=0.001),
    "terngrad": Tuned(lr=0.001),
    "qsgd": Tuned(lr=0.001),
    "drive": Tuned(lr=0.001),
    "eden": Tuned(lr=0.001),
}

PRIVATE = {"example": Tuned(lr=0.4), "client": Tuned(lr=0.1, codec="side-information")}
"""FedPM with privacy: ``lr`` is the root mean square of a step (benchmarks/private_digits.py), the coder keeps samples
random."""


def resolved(config: Config) -> Config:
    """Return the configuration with the algorithm's values in place of ``auto``."""
    tuned = PRIVATE.get(config.privacy.unit, TUNED[config.algorithm])
    lr = tuned.lr if config.local.lr == "auto" else config.local.lr
    keys = ("optimiser", "server_lr", "lr_decay", "server_decay")
    dense = {key: getattr(tuned, key) for key in keys if getattr(config.dense, key) == "auto"}
    return config.model_copy(
        update={
            "codec": tuned.codec if config.codec == "auto" else config.codec,
            "local": config.local.model_copy(update={"lr": lr}),
            "dense": config.dense.model_copy(update=dense),
        }
    )
