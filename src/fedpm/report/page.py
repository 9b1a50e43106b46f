"""The report: one HTML page that needs nothing else, and files of its figures and tables."""

from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from fedpm.files import make_folder, write_atomically
from fedpm.report import runs
from fedpm.report.curves import Drawn
from fedpm.report.figures import figures, save
from fedpm.report.rejected import rejected_table
from fedpm.report.style import inline, variables
from fedpm.report.tables import Table, seeds_of, settings_table, tables
from fedpm.study.results import Collection, collect


def write(folders: Sequence[Path], out: Path, only: Sequence[str] = ()) -> Path:
    """Write the report of studies and runs into a folder, or of the rows that are named, and return its page."""
    sections = []
    collections = [collection.only(only) for collection in collect(folders)]
    for number, collection in enumerate(collections):
        below = out if len(collections) == 1 else out / (collection.folder.name or "runs")
        drawn, shown_tables = figures(collection), [*tables(collection), *rejected_table(collection)]
        settings = settings_table(collection)
        shown = [_figure(one, save(one, below / "figures"), f"s{number}-{one.name}") for one in drawn]
        for table in (*shown_tables, settings):
            make_folder(below / "tables")
            write_atomically(below / "tables" / f"{table.name}.csv", table.to_csv().encode())
            write_atomically(below / "tables" / f"{table.name}.tex", table.to_latex().encode())
        sections.append(_section(collection, f"s{number}", shown, shown_tables, settings, len(collections) > 1))
    page = out / "index.html"
    write_atomically(page, _page(collections, sections).encode())
    return page


def _page(collections: list[Collection], sections: list[str]) -> str:
    title = _title(collections[0]) if len(collections) == 1 else "Report"
    links = "".join(f'<a href="#s{n}">{escape(_title(c))}</a>' for n, c in enumerate(collections))
    css = variables() + (resources.files("fedpm.report") / "page.css").read_text()
    head = f"<h1>{escape(title)}</h1>" + (f"<nav>{links}</nav>" if len(collections) > 1 else "")
    origin = f"Made by fedpm {version('fedpm')} on {datetime.now():%Y-%m-%d}. This page needs no other file."
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body><main>{head}{''.join(sections)}"
        f"<footer>{escape(origin)}</footer></main></body></html>\n"
    )


def _title(collection: Collection) -> str:
    return runs.title(collection) if collection.study is None else collection.title


def _section(
    collection: Collection, anchor: str, shown: list[str], shown_tables: list[Table], settings: Table, titled: bool
) -> str:
    first, *others = shown
    title = f"<h2>{escape(_title(collection))}</h2>" if titled else ""
    graph, (shown_table, fairness) = (
        f'<div class="figures">{first}</div>',
        (_tables([table for table in shown_tables if (table.name == "fairness") is last]) for last in (False, True)),
    )
    loose = collection.study is None  # of which the table is short, and says all
    unfinished = [run.folder.name for run in collection.runs if not run.summary]
    return "".join(
        [
            f'<section id="{anchor}">{title}{_introduction(collection)}',
            _note(f"Not finished: {', '.join(unfinished)}.") if unfinished else "",
            *((shown_table, graph) if loose else (graph, shown_table)),
            fairness,
            f'<div class="figures">{"".join(others)}</div>',
            f"<details><summary>Settings and versions</summary>{settings.to_html()}</details></section>",
        ]
    )


def _tables(shown: list[Table]) -> str:
    return f'<div class="tables">{"".join(table.to_html() for table in shown)}</div>' if shown else ""


def _introduction(collection: Collection) -> str:
    study = collection.study
    if study is None:
        return runs.headlines(collection)
    words = [f"{len(collection.groups)} settings, {seeds_of(collection.groups)} each."]
    if study.paper:
        words.insert(0, f"In the paper: {study.paper}.")
    if study.scale:
        words.append(f"Scale: {study.scale}.")
    lines = [f"<p>{escape(study.about)}</p>" if study.about else ""]
    lines.append(f'<p class="muted">{escape(" ".join(words))}</p>')
    return "".join(lines) + (
        _note(f"{'What differs from the paper: ' if study.paper else ''}{study.differs}") if study.differs else ""
    )


def _note(text: str) -> str:
    return f'<p class="differs">{escape(text)}</p>'


def _figure(drawn: Drawn, svg: str, name: str) -> str:
    picture = inline(svg, name)
    picture = picture.replace("<svg", f'<svg role="img" aria-label="{escape(drawn.title)}"', 1)
    size = " many" if drawn.figure.get_size_inches()[0] > 9 else ""
    return (
        f'<figure id="{name}" class="{"wide" if drawn.wide or size else ""}{size}"><figcaption>'
        f"<h3>{escape(drawn.title)}</h3><p>{escape(drawn.text)}</p></figcaption>"
        f'<div class="scroll">{picture}</div></figure>'
    )
