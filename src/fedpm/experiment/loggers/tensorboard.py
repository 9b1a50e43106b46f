"""TensorBoard: event files in the folder ``tensorboard`` of a run."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from fedpm.experiment.loggers import About, scalars
from fedpm.experiment.observers import Observer
from fedpm.experiment.record import RoundRecord


@contextmanager
def log(about: About) -> Iterator[Observer]:
    """Write a round's scalars and the histogram of θ; rounds that are done again replace those before."""
    from torch.utils.tensorboard import SummaryWriter

    events: Any = SummaryWriter(str(about.folder / "tensorboard"), purge_step=about.done + 1)

    def write(record: RoundRecord) -> None:
        for name, value in scalars(record, about.layers).items():
            events.add_scalar(name, value, record["round"])
        if "theta_histogram" in record:
            _histogram(events, np.array(record["theta_histogram"]), record["round"])
        events.flush()

    with closing(events):
        yield write


def _histogram(events: Any, counts: Any, number: int) -> None:
    middles = np.linspace(0, 1, len(counts))
    events.add_histogram_raw(
        "theta",
        min=0.0,
        max=1.0,
        num=int(counts.sum()),
        sum=float((counts * middles).sum()),
        sum_squares=float((counts * middles**2).sum()),
        bucket_limits=(middles + middles[1] / 2).tolist(),
        bucket_counts=counts.tolist(),
        global_step=number,
    )
