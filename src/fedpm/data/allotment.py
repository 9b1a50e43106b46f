"""How many examples of each class each client gets, when a client may hold only so many classes.

A table of counts, clients by classes, is built in three steps. First every class is given to a client, so that
none is lost. Then clients, the largest first, choose the rest of their classes, preferring those of which most
is left, and take their examples in proportion to what is left. Last, what found no taker is moved along augmenting
paths, as in a maximum flow (client A takes more of one class and less of another, which client B still wants), until
no such path is left: for the classes so chosen no table is nearer to the target sizes.

Everything is integers, so that the same table comes out on every machine.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Assignment = npt.NDArray[np.bool_]

_MAX_PATHS = 1000  # paths that are followed, at most
_MAX_WORK = 4_000_000_000  # and multiplications spent on looking for them


def allot(targets: Counts, supply: Counts, max_classes: int, noise: npt.NDArray[np.uint32]) -> Counts:
    """Return counts (clients, classes) that use up the supply, with at most ``max_classes`` classes a client.

    Args:
        targets: how many examples each client should get, one at least; their sum is that of the supply.
        supply: how many examples there are of each class, one at least.
        max_classes: the bound on a client's classes; clients × max_classes is at least the number of classes.
        noise: random numbers (clients, classes) that vary the choice.
    """
    assigned = _assign_every_class(targets, supply, max_classes, noise[0])
    counts = _assign_more_classes(assigned, targets, supply, max_classes, noise)
    _improve(counts, assigned, targets, supply)
    for label in np.flatnonzero(supply - counts.sum(0)):  # sizes give way: the holders take the rest
        rest = int(supply[label] - counts[:, label].sum())
        holders = np.flatnonzero(assigned[:, label])
        counts[holders, label] += _apportion(rest, targets[holders] * rest)
    fill_empty(counts)
    return counts


def fill_empty(counts: Counts) -> None:
    """Give every client without examples one of the largest client's; changes the table."""
    sizes = counts.sum(1)
    for client in np.flatnonzero(sizes == 0):
        donor = int(sizes.argmax())
        label = int(counts[donor].argmax())
        counts[donor, label] -= 1
        counts[client, label] += 1
        sizes[donor] -= 1
        sizes[client] = 1


def _assign_every_class(targets: Counts, supply: Counts, max_classes: int, noise: npt.NDArray[np.uint32]) -> Assignment:
    """Give every class to one client: the largest class to the client that still wants most."""
    assigned = np.zeros((len(targets), len(supply)), bool)
    unmet, slots = targets.copy(), np.full(len(targets), max_classes)
    for label in np.lexsort((noise, -supply)):
        client = int(np.where(slots > 0, unmet, np.iinfo(np.int64).min).argmax())
        assigned[client, label] = True
        unmet[client] -= supply[label]
        slots[client] -= 1
    return assigned


def _assign_more_classes(
    assigned: Assignment, targets: Counts, supply: Counts, max_classes: int, noise: npt.NDArray[np.uint32]
) -> Counts:
    """Let clients choose further classes (``assigned`` grows) and take examples: never more than targeted or left."""
    counts = np.zeros(assigned.shape, np.int64)
    remaining = supply.copy()
    factors = 2**15 + (noise >> 17).astype(np.int64)  # what is left counts once to twice, at random
    for client in np.argsort(-targets, kind="stable"):
        own, size = assigned[client], int(targets[client])
        free = min(max_classes, size) - int(own.sum())
        if free > 0:
            appeal = remaining * factors[client] * ~own
            best = np.argsort(-appeal, kind="stable")[:free]
            own[best[appeal[best] > 0]] = True
        room = remaining * own
        taken = _apportion(min(size, int(room.sum())), room)
        counts[client] = taken
        remaining -= taken
    return counts


def _apportion(amount: int, room: Counts) -> Counts:
    """Split an amount into integers in proportion to the room, none larger than its room."""
    if amount == 0:
        return np.zeros_like(room)
    parts: Counts = amount * room // room.sum()
    short = np.flatnonzero(room > parts)
    parts[short[: amount - parts.sum()]] += 1
    return parts


def _improve(counts: Counts, assigned: Assignment, targets: Counts, supply: Counts) -> None:
    """Move what is left to who still wants, along the shortest paths of swaps; changes the table."""
    clients, classes = assigned.shape
    for _ in range(min(_MAX_PATHS, 1 + _MAX_WORK // (clients * classes**2))):
        remaining, unmet = supply - counts.sum(0), targets - counts.sum(1)
        if not remaining.any():
            return
        path = _augmenting_path(counts, assigned, remaining, unmet)
        if path is None:
            return
        _augment(counts, assigned, remaining, unmet, path)


def _augmenting_path(counts: Counts, assigned: Assignment, remaining: Counts, unmet: Counts) -> list[int] | None:
    """Return classes from one with examples left to one that a client still wants, each swappable for the next."""
    goal = np.asarray((assigned & (unmet > 0)[:, None]).any(0))
    swaps: Assignment = np.greater(assigned.astype(np.float32).T @ (counts > 0).astype(np.float32), 0)
    previous = np.full(len(remaining), -1)
    layer = np.flatnonzero(remaining)
    previous[layer] = layer
    while len(layer):  # ends: a class is in one layer only
        done = layer[goal[layer]]
        if len(done):
            return _trace(previous, int(done[0]))
        next_layer = np.flatnonzero(swaps[layer].any(0) & (previous < 0))
        previous[next_layer] = layer[swaps[np.ix_(layer, next_layer)].argmax(0)]
        layer = next_layer
    return None


def _trace(previous: npt.NDArray[np.intp], last: int) -> list[int]:
    path = [last]
    while previous[path[-1]] != path[-1]:  # ends: every step goes to an earlier layer
        path.append(int(previous[path[-1]]))
    return path[::-1]


def _augment(counts: Counts, assigned: Assignment, remaining: Counts, unmet: Counts, path: list[int]) -> None:
    """Carry as much as possible along a path."""
    hops = list(pairwise(path))
    takers = unmet * assigned[:, path[-1]]
    amount = min(int(remaining[path[0]]), int(takers.sum()))
    amount = min([amount, *(int((counts[:, b] * assigned[:, a]).sum()) for a, b in hops)])
    for a, b in reversed(hops):
        swapped = _apportion(amount, counts[:, b] * assigned[:, a])
        counts[:, b] -= swapped
        counts[:, a] += swapped
    counts[:, path[-1]] += _apportion(amount, takers)
