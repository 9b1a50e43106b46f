"""Runs that belong to no study: what to call each, and a headline for it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from fedpm.experiment.record import byte_size, headline
from fedpm.study.results import Collection, Group, Outcome

RUN = "run"
"""The axis whose labels are the names of run folders."""
_MOST = 12  # headlines of a page; beyond, the table says it better
_LONGEST = 26  # letters of a name in a figure


def run_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the end of each folder's path that tells it from the others."""
    names = {folder: folder.resolve().parts for folder in folders}
    lengths = dict.fromkeys(names, 1)
    while True:
        tails = {folder: "/".join(parts[-lengths[folder] :]) for folder, parts in names.items()}
        counts = Counter(tails.values())
        again = [f for f, tail in tails.items() if counts[tail] > 1 and lengths[f] < len(names[f])]
        if not again:
            return tails
        lengths.update({folder: lengths[folder] + 1 for folder in again})


def by_run(collection: Collection, *, whole: bool = False) -> Collection:
    """Return the groups of loose runs called by their folders; if ``whole``, by all of them and the method."""
    names = run_names([run.folder for run in collection.runs])
    groups = []
    for group in collection.groups:
        called = [names[run.folder] for run in group.runs]
        labels = {RUN: ", ".join(called), "algorithm": group.method} if whole else {RUN: _shortened(called)}
        groups.append(Group(labels, group.runs))
    return replace(collection, groups=groups)


def _shortened(names: list[str]) -> str:
    more = f" + {len(names) - 1}" if len(names) > 1 else ""
    first = names[0] if len(names[0]) <= _LONGEST else f"…{names[0][1 - _LONGEST :]}"
    return first + more


def title(collection: Collection) -> str:
    """Return what a page about loose runs is called."""
    names = list(run_names([run.folder for run in collection.runs]).values())
    if len(names) > 3:
        return f"{len(names)} runs"
    return f"{'Run' if len(names) == 1 else 'Runs'} {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"


def headlines(collection: Collection) -> str:
    """Return a card for each run: accuracy, bytes both ways, how much less than float32 that is, data and network."""
    if len(collection.runs) > _MOST:
        return ""
    names = run_names([run.folder for run in collection.runs])
    cards = (_card(run, names[run.folder], group.method) for group in collection.groups for run in group.runs)
    return f'<div class="runs">{"".join(cards)}</div>'


def _card(run: Outcome, name: str, method: str) -> str:
    last = run.records[-1]
    shipped: Any = run.summary if run.summary.get("round", math.inf) <= last["round"] else last
    metric, _, value = headline(shipped).rpartition(" ")
    up, down = (sum(record[way] for record in run.records) for way in ("uplink_bytes", "downlink_bytes"))
    sent = f"{byte_size(up)} up, {byte_size(down)} down"
    if ratio := _times_less(run, up + down):
        sent += f": {ratio} than float32"
    data = run.config["data"]
    source = data["name"] if data.get("path") is None else Path(data["path"]).name
    about = [method, source, run.config["model"]["name"], f"seed {run.seed}"]
    rounds = f"{last['round']} round{'s' * (last['round'] > 1)}"
    if shipped["round"] != last["round"]:
        rounds = f"round {shipped['round']} of {last['round']}"
    where = f'<p class="muted">{escape(str(run.folder))}</p>' if str(run.folder) != name else ""
    return (
        f'<article><h3>{escape(name)}</h3>{where}<p class="big">{escape(value)} '
        f"<small>test {escape(metric)} after {rounds}{'' if run.summary else ', not finished'}</small></p>"
        f'<p>{escape(sent)}</p><p class="muted">{escape(" · ".join(map(str, about)))}</p></article>'
    )


def _times_less(run: Outcome, sent: int) -> str:
    """Return how many times less was sent than by float32 both ways; of a run that is not finished, nothing."""
    passages = 2 * sum(len(record["clients"]) for record in run.records)
    ratio = 4 * run.summary.get("parameters", 0) * passages / max(sent, 1)
    if not ratio:
        return ""
    if ratio < 1.1:
        return ""
    return f"{ratio:.2g}× less" if ratio < 10 else f"{ratio:,.0f}× less"
