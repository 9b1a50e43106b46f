"""How long it takes to split labels over many clients."""

from functools import partial

import numpy as np

from benchmarks.timing import Row, timed
from fedpm.data.partition import split

LABELS, CLIENTS = 60_000, 10_000


def run() -> list[Row]:
    """Measure every kind of split, the one by classes with a tight and with a loose bound."""
    labels = np.random.Generator(np.random.Philox(key=1)).integers(0, 10, LABELS)
    cases = {
        "iid": partial(split, labels, CLIENTS, 0, "iid"),
        "2 classes a client": partial(split, labels, CLIENTS, 0, "classes", classes_per_client=2),
        "10 classes a client": partial(split, labels, CLIENTS, 0, "classes", classes_per_client=10),
        "Dirichlet(0.01)": partial(split, labels, CLIENTS, 0, "dirichlet", alpha=0.01),
        "Dirichlet(1)": partial(split, labels, CLIENTS, 0, "dirichlet", alpha=1.0),
    }
    seconds = timed(cases, cpu=True)
    return [{"split": name, "seconds": seconds[name]} for name in cases]
