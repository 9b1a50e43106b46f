"""Clients that Flower runs: simulated ones (Ray), or a fleet of SuperNodes."""

from dataclasses import dataclass
from math import ceil

from fedpm.engines.base import Clients, Engine, Start
from fedpm.registry import EngineSpec, Settings, register, setting


@dataclass(frozen=True)
class Limits:
    """How many answers a round needs, and for how many seconds it waits for answers and for nodes."""

    quorum: int
    deadline: float
    patience: float


class FlowerSettings(Settings):
    """What a server on Flower waits for, and what it can do without."""

    quorum: float = setting(
        0.5, "share of a round's clients whose usable answers it needs", changes_results=False, gt=0, le=1
    )
    deadline: float = setting(600.0, "seconds that a round waits for answers", changes_results=False, gt=0)
    patience: float = setting(300.0, "seconds to wait for clients to be connected", changes_results=False, gt=0)


def limits_of(settings: object, per_round: int) -> Limits:
    """Return what a server on Flower waits for in a round of so many clients."""
    if not isinstance(settings, FlowerSettings):
        raise TypeError(f"{settings!r} are not the settings of a server on Flower")
    return Limits(ceil(settings.quorum * per_round), settings.deadline, settings.patience)


def start(clients: Clients, how: Start) -> Engine:
    """Start Flower's simulation."""
    from fedpm.engines.flower.simulation import Simulation

    return Simulation(clients, how.clients, how.workers, limits_of(how.settings, how.per_round))


register(
    EngineSpec(
        name="flower",
        label="Flower",
        about="Flower's simulation (Ray), or its SuperNodes in a fleet",
        build=start,
        settings=FlowerSettings,
    )
)
