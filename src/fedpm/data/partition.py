"""Labels to clients: pure functions of labels and a seed."""

import numpy as np
import numpy.typing as npt

from fedpm.errors import DataError
from fedpm.rng import Streams

Indices = npt.NDArray[np.intp]


def iid(labels: npt.NDArray[np.int64], clients: int, seed: int) -> list[Indices]:
    """Spread the examples over the clients at random, in parts as equal as possible."""
    if clients > len(labels):
        raise DataError(
            f"clients.total = {clients}: there are only {len(labels)} training examples, and each client needs one; "
            "use fewer clients or more data"
        )
    order = Streams(seed).permutation("partition", len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]
