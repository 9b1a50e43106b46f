"""Labels to clients: pure functions of labels and a seed.

Every example goes to exactly one client, and every client gets one at least. No loop waits for luck: each has
a bound that is known beforehand.
"""

import numpy as np
import numpy.typing as npt

from fedpm.data.allotment import Counts, allot, fill_empty
from fedpm.errors import DataError
from fedpm.rng import Streams

Indices = npt.NDArray[np.intp]
Labels = npt.NDArray[np.int64]

_TRIES = 256  # choices of classes that are tried, at most
_CELLS = 100_000  # and entries of the tables of all of them


def split(
    labels: Labels,
    clients: int,
    seed: int,
    how: str = "iid",
    *,
    classes_per_client: int | None = None,
    alpha: float | None = None,
) -> list[Indices]:
    """Spread the examples over the clients: ``iid``, by ``classes``, or by ``dirichlet``."""
    if how == "classes" and classes_per_client is not None:
        return by_classes(labels, clients, seed, classes_per_client)
    if how == "dirichlet" and alpha is not None:
        return by_dirichlet(labels, clients, seed, alpha)
    if how == "iid":
        return iid(labels, clients, seed)
    raise DataError(
        f"data.split = {how!r} should be iid, classes with data.classes_per_client, dirichlet with data.alpha, or "
        "given where the data name clients"
    )


def iid(labels: Labels, clients: int, seed: int) -> list[Indices]:
    """Spread the examples over the clients at random, in parts as equal as possible."""
    _enough(labels, clients)
    order = Streams(seed).permutation("partition", len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def by_classes(labels: Labels, clients: int, seed: int, most: int) -> list[Indices]:
    """Split as in Section 4.2: sizes in proportion to j_n from {10..100}, at most ``most`` classes a client.

    The bound on the classes is hard and every example is used, so the sizes give way where all three cannot be
    had. The wanted size of a client is within 2 examples of p_n·|D|. Several random choices of classes are tried
    (see ``allotment``): the first that admits all wanted sizes gives exactly those, and without one the choice
    that is nearest to them in total is taken.
    """
    _enough(labels, clients)
    present, column = np.unique(labels, return_inverse=True)
    if clients * most < len(present):
        raise DataError(
            f"data.classes_per_client = {most}: {clients} clients can hold at most {clients * most} classes, and the "
            f"training examples have {len(present)}, so that some would be lost; use more clients or more classes each"
        )
    rng = Streams(seed)
    wanted = _sizes(10 + (rng.words("sizes", clients) % 91).astype(np.int64), len(labels))
    return _deal(column, _nearest(wanted, np.bincount(column), most, rng), rng)


def by_dirichlet(labels: Labels, clients: int, seed: int, alpha: float) -> list[Indices]:
    """Spread each class over the clients in proportions drawn from a symmetric Dirichlet(α).

    A small α leaves a class to few clients, a large one is nearly IID. A client that would get nothing is given
    one example of the largest client.
    """
    _enough(labels, clients)
    if not 1e-6 <= alpha <= 1e6:
        raise DataError(f"data.alpha = {alpha}: should be from 1e-6 (a class to one client) to 1e6 (as good as IID)")
    present, column = np.unique(labels, return_inverse=True)
    rng = Streams(seed)
    bounds = np.cumsum(_dirichlet(alpha, (clients, len(present)), rng), axis=0)
    bounds[-1] = 1
    ends = np.floor(np.minimum(bounds, 1) * np.bincount(column) + 0.5).astype(np.int64)
    counts: Counts = np.diff(ends, axis=0, prepend=0)
    fill_empty(counts)
    return _deal(column, counts, rng)


def histogram(labels: Labels, parts: list[Indices], classes: int) -> Counts:
    """Return how many examples of each class each client has, (clients, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _enough(labels: Labels, clients: int) -> None:
    if clients > len(labels):
        raise DataError(
            f"clients.total = {clients}: there are only {len(labels)} training examples, and each client needs one; "
            "use fewer clients or more data"
        )


def _sizes(weights: Counts, total: int) -> Counts:
    """Return integers in proportion to the weights, one at least, that sum to the total."""
    ends = np.cumsum(weights) * (total - len(weights)) // weights.sum()
    sizes: Counts = 1 + np.diff(ends, prepend=0)
    return sizes


def _nearest(wanted: Counts, supply: Counts, most: int, rng: Streams) -> Counts:
    """Return the table of a few choices of classes that comes nearest to the wanted sizes."""
    shape = len(wanted), len(supply)
    off, best = 1 + 2 * int(wanted.sum()), np.zeros(shape, np.int64)  # farther than any table
    for number in range(max(1, min(_TRIES, _CELLS // (shape[0] * shape[1])))):
        noise = rng.uint32(f"classes, choice {number}", shape[0] * shape[1]).reshape(shape)
        counts = allot(wanted, supply, most, noise)
        distance = int(np.abs(counts.sum(1) - wanted).sum())
        if distance < off:
            off, best = distance, counts
        if off == 0:
            break
    return best


def _dirichlet(alpha: float, shape: tuple[int, int], rng: Streams) -> npt.NDArray[np.float64]:
    """Return columns drawn from Dirichlet(α), by inverting the gamma distribution.

    In logarithms, and from Gamma(α+1)·U^(1/α) = Gamma(α): for a small α all draws of Gamma(α) would round to 0.
    """
    from scipy.special import gammaincinv

    first, second = ((rng.words(f"dirichlet {part}", shape[0] * shape[1]) >> 11) + 0.5 for part in ("a", "b"))
    logs = np.log(gammaincinv(alpha + 1, first * 2.0**-53)) + np.log(second * 2.0**-53) / alpha
    logs = logs.reshape(shape)
    draws = np.exp(logs - logs.max(0))
    return np.asarray(draws / draws.sum(0))


def _deal(column: Indices, counts: Counts, rng: Streams) -> list[Indices]:
    """Draw as many examples of each class for each client as the table says."""
    shuffled = rng.permutation("partition", len(column))
    by_class = shuffled[np.argsort(column[shuffled], kind="stable")]
    owner = np.repeat(np.tile(np.arange(len(counts)), counts.shape[1]), counts.T.ravel())
    order = by_class[np.lexsort((by_class, owner))]
    return np.split(order, np.cumsum(counts.sum(1))[:-1])
