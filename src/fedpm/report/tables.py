"""Tables: one content, as HTML, CSV and LaTeX."""

import csv
import io
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from statistics import mean

from fedpm.config import changes_results, flattened
from fedpm.report import fairness
from fedpm.report.runs import by_run
from fedpm.study.overview import mean_and_deviation, overview
from fedpm.study.results import Collection, Group, Outcome

QUANTITIES = {
    "accuracy": "Test accuracy",
    "uplink_bpp": "Bits per parameter sent up, as really sent",
    "paper_bpp": "Bits per parameter sent up, by the paper's accounting",
    "model_bpp": "Bits per parameter of the final model",
}
_BITS, _BYTES, _MODEL = "bits per parameter and client", "MB of all clients, both ways", "model file"
_GROUPS = {
    "bpp up": (_BITS, "up"),
    "paper's bpp": (_BITS, "up, as the paper counts"),
    "bpp down": (_BITS, "down"),
    "MB": (_BYTES, "in all"),
    "model bpp": (_MODEL, "bits per parameter"),
    "model kB": (_MODEL, "kB"),
}
"""Of columns that belong together: the heading above them, and what is left to say of each."""
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "ρ": r"$\rho$", "γ": r"$\gamma$",
    "σ": r"$\sigma$", "θ": r"$\theta$", "×": r"$\times$", "’": "'", "−": "$-$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What we found, and what the paper says."""

    ours: str
    paper: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: the first ``labels`` columns name a row, the others hold figures."""

    name: str
    title: str
    note: str
    head: list[str]
    labels: int
    rows: list[list[Cell]]

    def flat(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows with a column of its own for the paper's figures, where there are any."""
        both = [any(row[column].paper is not None for row in self.rows) for column in range(len(self.head))]
        head = [part for name, two in zip(self.head, both, strict=True) for part in _two(name, f"{name} (paper)", two)]
        rows = [
            [part for cell, two in zip(row, both, strict=True) for part in _two(cell.ours, cell.paper or "", two)]
            for row in self.rows
        ]
        return head, rows

    def to_csv(self) -> str:
        """Return the table as CSV."""
        head, rows = self.flat()
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
        return text.getvalue()

    def to_latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        head, rows = self.flat()
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in (head, *rows)]
        columns = "l" * self.labels + "r" * (len(head) - self.labels)
        caption = rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}"
        body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        return "\n".join([r"\begin{table}", r"\centering", caption, *body, r"\end{tabular}", r"\end{table}", ""])

    def to_html(self) -> str:
        """Return the table as HTML, the paper's figures below ours."""
        body = "".join(f"<tr>{''.join(map(self._html, range(len(row)), row))}</tr>" for row in self.rows)
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (
            f'<figure class="table {escape(self.name)}"><figcaption><h3>{escape(self.title)}</h3>{note}'
            f'</figcaption><div class="scroll" tabindex="0"><table><thead>{self._head()}</thead><tbody>{body}</tbody>'
            "</table></div></figure>"
        )

    def _head(self) -> str:
        """Return the head: columns that belong together below a heading of their own."""
        above, below = [], []
        for heading, columns in groupby(enumerate(self.head), lambda column: _grouped(column[1])[0]):
            names = list(columns)
            if heading:
                above.append(f'<th scope="colgroup" colspan="{len(names)}">{escape(heading)}</th>')
                below += [f'<th scope="col">{escape(_grouped(name)[1])}</th>' for _, name in names]
                continue
            for place, name in names:
                kind = ' class="label"' if place < self.labels else ""
                above.append(f'<th scope="col" rowspan="2"{kind}>{escape(name)}</th>')
        if not below:
            above = [cell.replace(' rowspan="2"', "") for cell in above]
        return f"<tr>{''.join(above)}</tr>" + (f"<tr>{''.join(below)}</tr>" if below else "")

    def _html(self, column: int, cell: Cell) -> str:
        paper = f'<small title="in the paper">{escape(cell.paper)}</small>' if cell.paper is not None else ""
        if column < self.labels:
            return f'<th scope="row">{escape(cell.ours)}</th>'
        first = column and _grouped(self.head[column])[0] != _grouped(self.head[column - 1])[0]
        kind = ' class="first"' if first else ""
        return f"<td{kind}>{escape(cell.ours)}{paper}</td>"


def _grouped(name: str) -> tuple[str, str]:
    """Return the heading that a column stands below, none for most, and its name there."""
    return (_BYTES, name.removeprefix("MB ")) if name.startswith("MB to ") else _GROUPS.get(name, ("", name))


def tables(collection: Collection) -> list[Table]:
    """Return all tables of a collection: like the paper's where there is more than one axis, and the overview."""
    if collection.study is None:
        named = by_run(collection, whole=True)
        return [_settled(_overview(named), collection), *_fairness(named)]
    pivots = [_pivot(collection, quantity) for quantity in QUANTITIES if len(collection.axes) > 1]
    return [*pivots, _overview(collection), *_fairness(collection)]


def _fairness(collection: Collection) -> list[Table]:
    """Return the table of whom networks serve worst, if that is known."""
    head, rows = fairness.rows(collection)
    if not rows:
        return []
    labels = [list(group.labels.values()) or [group.name] for group in collection.groups]
    cells = [[Cell(cell) for cell in (*label, *row)] for label, row in zip(labels, rows, strict=True)]
    note = "Worst class on test data; worst and median client on examples that clients hold out (first seed)."
    axes = collection.axes or ["algorithm"]
    return [Table("fairness", "For whom it is worst", note, [*axes, *head], len(axes), cells)]


def _overview(collection: Collection) -> Table:
    head, rows = overview(collection)
    note = "Bits per parameter (bpp): up, a message of a client; down, one to it. MB: of all clients, both ways."
    if any(len(group.runs) > 1 for group in collection.groups):
        note = f"Means over the seeds, accuracy ± σ. {note}"
    if collection.goals:
        note += " MB to an accuracy: until it is first reached; 2 of 3: so many of the runs reach it."
    cells = [[Cell(cell) for cell in row] for row in rows]
    for quantity, column in (("accuracy", "accuracy"), ("paper_bpp", "paper's bpp"), ("model_bpp", "model bpp")):
        published, place = _published(collection, quantity), head.index(column)
        for row, group in zip(cells, collection.groups, strict=True):
            row[place] = Cell(row[place].ours, published.get(tuple(group.labels.values())))
    if collection.study and collection.study.published:
        where = "; ".join(table.where for table in collection.study.published)
        note += f" Small, below ours: the paper's ({where})."
    return Table("overview", "Everything in one table", note, head, max(1, len(collection.axes)), cells)


def _settled(table: Table, collection: Collection) -> Table:
    """Return the table of loose runs without empty columns, and behind their figures the settings they differ in."""
    there = [place for place in range(len(table.head)) if any(row[place].ours != "–" for row in table.rows)]
    axes = [axis for axis in collection.axes if axis != "algorithm"]
    rows = [
        [*(row[place] for place in there), *(Cell(group.labels[axis]) for axis in axes)]
        for row, group in zip(table.rows, collection.groups, strict=True)
    ]
    return replace(table, head=[*(table.head[place] for place in there), *axes], rows=rows)


def _pivot(collection: Collection, quantity: str) -> Table:
    """Return a figure of every group, the last axis across, with the paper's figure below ours."""
    published = _published(collection, quantity)
    *down, across = collection.axes
    columns = list(dict.fromkeys(group.labels[across] for group in collection.groups))
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for group in collection.groups:
        key = tuple(group.labels[axis] for axis in down)
        cell = Cell(mean_and_deviation(group.finals(quantity)), published.get(tuple(group.labels.values())))
        rows.setdefault(key, {})[group.labels[across]] = cell
    cells = [
        [*(Cell(label) for label in key), *(figures.get(column, Cell("–")) for column in columns)]
        for key, figures in rows.items()
    ]
    where = [t.where for t in collection.study.published if t.quantity == quantity] if collection.study else []
    note = (
        f"Mean ± σ over seeds. Small, below ours: the paper's ({'; '.join(where)})."
        if where
        else "Mean ± σ over seeds."
    )
    head = [*down, *(f"{across} = {column}" for column in columns)]
    return Table(quantity.replace("_", "-"), QUANTITIES[quantity], note, head, len(down), cells)


def _published(collection: Collection, quantity: str) -> dict[tuple[str, ...], str]:
    figures = {}
    for table in collection.study.published if collection.study else []:
        if table.quantity == quantity:
            for row in table.rows:
                size = len(collection.axes)
                figures[tuple(map(str, row[:size]))] = " ± ".join(f"{value:g}" for value in row[size:])
    return figures


def settings_table(collection: Collection) -> Table:
    """Return the settings that all runs share, and the versions of what made them."""
    settings = [flattened(run.config) for run in collection.runs]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    shown = {key: value for key, value in common.items() if key != "seed" and changes_results(key)}
    rows = [[Cell(key), Cell(str(value))] for key, value in shown.items()]
    rows += [[Cell(f"{what} (version)"), Cell(value)] for what, value in _versions(collection.runs)]
    rows.append([Cell("seeds"), Cell(", ".join(str(seed) for seed in sorted({run.seed for run in collection.runs})))])
    parameters = sorted({run.summary["parameters"] for run in collection.runs if "parameters" in run.summary})
    rows.append([Cell("parameters of the network"), Cell(", ".join(f"{count:,}" for count in parameters))])
    seconds = [record["seconds"] for run in collection.runs for record in run.records]
    rows.append([Cell("time of all rounds"), Cell(f"{sum(seconds) / 60:.0f} minutes, {mean(seconds):.1f} s a round")])
    return Table("settings", "Settings and versions", "What all runs share.", ["setting", "value"], 1, rows)


def _versions(runs: list[Outcome]) -> list[tuple[str, str]]:
    versions: dict[str, list[str]] = {}
    for run in runs:
        for what, value in run.summary.get("versions", {}).items():
            if value not in versions.setdefault(what, []):
                versions[what].append(value)
    return [(what, ", ".join(values)) for what, values in versions.items()]


def seeds_of(groups: list[Group]) -> str:
    """Return how many seeds there are, in words."""
    counts = sorted({len(group.runs) for group in groups})
    text = " to ".join(str(count) for count in (counts[0], counts[-1])[: len(counts)])
    return f"{text} seed{'' if text == '1' else 's'}"


def _two(first: str, second: str, both: bool) -> list[str]:
    return [first, second] if both else [first]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
