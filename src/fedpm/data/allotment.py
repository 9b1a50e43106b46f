"""How many examples of each class each client gets, when a client may hold only so many classes.

A table of counts, clients by classes, is built in three steps. First every class is given to a client, so that
none is lost. Then clients, the largest first, choose the rest of their classes, preferring those of which most
is left, and take their examples in proportion to what is left. Last, what found no taker is moved along chains
(client A takes more of one class and less of another, which client B still wants) until no such chain is left:
for the classes so chosen no table is nearer to the wanted sizes.

Everything is integers, so that the same table comes out on every machine.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Held = npt.NDArray[np.bool_]

_CHAINS = 1000  # chains that are followed, at most
_WORK = 4_000_000_000  # and multiplications spent on looking for them


def allot(wanted: Counts, supply: Counts, most: int, noise: npt.NDArray[np.uint32]) -> Counts:
    """Return counts (clients, classes) that use up the supply, with at most ``most`` classes a client.

    Args:
        wanted: how many examples each client should get, one at least; their sum is that of the supply.
        supply: how many examples there are of each class, one at least.
        most: the bound on a client's classes; clients × most is at least the number of classes.
        noise: random numbers (clients, classes) that vary the choice.
    """
    held = _cover(wanted, supply, most, noise[0])
    counts = _choose(held, wanted, supply, most, noise)
    _settle(counts, held, wanted, supply)
    for label in np.flatnonzero(supply - counts.sum(0)):  # sizes give way: the holders take the rest
        rest = int(supply[label] - counts[:, label].sum())
        holders = np.flatnonzero(held[:, label])
        counts[holders, label] += _share(rest, wanted[holders] * rest)
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


def _cover(wanted: Counts, supply: Counts, most: int, noise: npt.NDArray[np.uint32]) -> Held:
    """Give every class to one client: the largest class to the client that still wants most."""
    held = np.zeros((len(wanted), len(supply)), bool)
    open_need, slots = wanted.copy(), np.full(len(wanted), most)
    for label in np.lexsort((noise, -supply)):
        client = int(np.where(slots > 0, open_need, np.iinfo(np.int64).min).argmax())
        held[client, label] = True
        open_need[client] -= supply[label]
        slots[client] -= 1
    return held


def _choose(held: Held, wanted: Counts, supply: Counts, most: int, noise: npt.NDArray[np.uint32]) -> Counts:
    """Let clients choose further classes (``held`` grows) and take examples: never more than wanted or there."""
    counts = np.zeros(held.shape, np.int64)
    left = supply.copy()
    factors = 2**15 + (noise >> 17).astype(np.int64)  # what is left counts once to twice, at random
    for client in np.argsort(-wanted, kind="stable"):
        mine, size = held[client], int(wanted[client])
        free = min(most, size) - int(mine.sum())
        if free > 0:
            appeal = left * factors[client] * ~mine
            best = np.argsort(-appeal, kind="stable")[:free]
            mine[best[appeal[best] > 0]] = True
        room = left * mine
        taken = _share(min(size, int(room.sum())), room)
        counts[client] = taken
        left -= taken
    return counts


def _share(amount: int, room: Counts) -> Counts:
    """Split an amount into integers in proportion to the room, none larger than its room."""
    if amount == 0:
        return np.zeros_like(room)
    parts: Counts = amount * room // room.sum()
    open_ = np.flatnonzero(room > parts)
    parts[open_[: amount - parts.sum()]] += 1
    return parts


def _settle(counts: Counts, held: Held, wanted: Counts, supply: Counts) -> None:
    """Move what is left to who still wants, along the shortest chains of swaps; changes the table."""
    clients, classes = held.shape
    for _ in range(min(_CHAINS, 1 + _WORK // (clients * classes**2))):
        left, wanting = supply - counts.sum(0), wanted - counts.sum(1)
        if not left.any():
            return
        chain = _chain(counts, held, left, wanting)
        if chain is None:
            return
        _move(counts, held, left, wanting, chain)


def _chain(counts: Counts, held: Held, left: Counts, wanting: Counts) -> list[int] | None:
    """Return classes from one with examples left to one that a client still wants, each swappable for the next."""
    goal = np.asarray((held & (wanting > 0)[:, None]).any(0))
    swaps: Held = np.greater(held.astype(np.float32).T @ (counts > 0).astype(np.float32), 0)
    before = np.full(len(left), -1)
    layer = np.flatnonzero(left)
    before[layer] = layer
    while len(layer):  # ends: a class is in one layer only
        done = layer[goal[layer]]
        if len(done):
            return _back(before, int(done[0]))
        fresh = np.flatnonzero(swaps[layer].any(0) & (before < 0))
        before[fresh] = layer[swaps[np.ix_(layer, fresh)].argmax(0)]
        layer = fresh
    return None


def _back(before: npt.NDArray[np.intp], last: int) -> list[int]:
    chain = [last]
    while before[chain[-1]] != chain[-1]:  # ends: every step goes to an earlier layer
        chain.append(int(before[chain[-1]]))
    return chain[::-1]


def _move(counts: Counts, held: Held, left: Counts, wanting: Counts, chain: list[int]) -> None:
    """Carry as much as possible along a chain."""
    hops = list(pairwise(chain))
    takers = wanting * held[:, chain[-1]]
    amount = min(int(left[chain[0]]), int(takers.sum()))
    amount = min([amount, *(int((counts[:, b] * held[:, a]).sum()) for a, b in hops)])
    for a, b in reversed(hops):
        swapped = _share(amount, counts[:, b] * held[:, a])
        counts[:, b] -= swapped
        counts[:, a] += swapped
    counts[:, chain[-1]] += _share(amount, takers)
