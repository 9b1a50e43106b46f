"""What MkDocs is told beside its pages: the home page, references made of the code, formulas."""

import html
import logging
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from typer.main import get_command

ROOT = Path(__file__).parents[2]
COPIES = {
    "index.md": "README.md",
    "reference/benchmarks.md": "benchmarks/README.md",
    "reference/changelog.md": "CHANGELOG.md",
    "reference/contributing.md": "CONTRIBUTING.md",
    "reference/results.md": "results/README.md",
}
"""Pages that stand elsewhere in the repository."""
MADE = ("reference/settings.md", "reference/commands.md", "reference/python.md", "reference/changelog.md")
"""Pages that name others as files: those made of the code, and the changelog."""
HEADS = {
    "index.md": "hide: [navigation]",
    "reference/results.md": "search: {exclude: true}",  # numbers, which would stand before what explains them
    "reference/benchmarks.md": "search: {boost: 0.3}",
    "reference/changelog.md": "search: {boost: 0.1}",
}
"""What the site is to do with some of these pages."""
os.environ.setdefault("JUPYTER_CONFIG_PATH", str(Path(__file__).parent))  # tutorials run as the settings there say


def on_startup(**_: object) -> None:
    """Let warnings be seen, by `strict` too: --quiet hides them from both, and a build with dead links would pass."""
    logging.getLogger("mkdocs").setLevel(logging.WARNING)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    made = {page: _moved((ROOT / source).read_text(), source, page) for page, source in COPIES.items()}
    made |= {page: f"---\n{head}\n---\n{made[page]}" for page, head in HEADS.items()}
    made |= {"reference/settings.md": _settings(), "reference/commands.md": _commands()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Name files of the repository that the site does not hold, lead to those that it has elsewhere, drop `.md`."""
    markdown = re.sub(r"\[([^\]]*)\]\((?:\.\./)+((?:src|tests|examples)/[^)]*)\)", r"`\2`", markdown)
    up = "../" * page.file.src_uri.count("/")
    for home, source in COPIES.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}(?=[)#])", f"]({up}{home}", markdown)
    return re.sub(r"\[(?:docs/)?([a-z-]+)\.md\]\(", lambda match: f"[{match[1].replace('-', ' ')}](", markdown)


def on_page_content(content: str, page: Page, files: Files, **_: object) -> str:
    """Turn formulas into MathML, which browsers show by themselves, and mend what others leave undone."""
    found = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
    content = found.sub(lambda match: _formula(html.unescape(match[2]), match[1]), content)
    content = re.sub(r"<code>[^<]*</code>", lambda match: match[0].replace(r"\|", "|"), content)  # cells of tables
    content = re.sub(r"<td[^>]*>.*?</td>", _breakable, content, flags=re.S)
    if page.file.src_uri.endswith(".py"):
        return _tutorial(content, page, files)
    if page.file.src_uri in MADE:
        return re.sub(r"\bdocs/([\w/-]+\.md)\b", lambda match: _link(match[1], page, files), content)
    return content


def _breakable(cell: re.Match[str]) -> str:
    """Return a cell of a table with places where a narrow screen may break its names."""
    broken = re.compile(r"(?<=\w)(?=_\w)|(?<=\w[.:])(?=\w)")
    return re.sub(r"(?<=<code>)[^<]+", lambda name: broken.sub("<wbr>", name[0]), cell[0])


def _link(path: str, page: Page, files: Files) -> str:
    """Return a link to another page, by its name on the site."""
    found = files.get_file_from_path(path)
    if found is None or found.page is None:
        raise PluginError(f"{page.file.src_uri} names {path}, which is not on the site")
    return f'<a href="{get_relative_url(found.url, page.url)}">{found.page.title}</a>'


def _tutorial(content: str, page: Page, files: Files) -> str:
    """Return an executed tutorial whose links lead to pages of the site; search sees its code once."""

    def link(match: re.Match[str]) -> str:
        path = os.path.normpath(f"{os.path.dirname(page.file.src_uri)}/{match[1]}")
        found = files.get_file_from_path(path)
        if found is None:
            raise PluginError(f"{page.file.src_uri} links to {path}, which is not on the site")
        return f'href="{get_relative_url(found.url, page.url)}{match[2]}"'

    content = re.sub(r'href="(?!https?:|#)([^"#]+\.(?:md|py))(#[^"]*|)"', link, content)
    content = content.replace('class="anchor-link"', 'class="headerlink"')
    unseen = r'<div class="(?=jp-InputPrompt|jp-OutputPrompt|zeroclipboard-container|clipboard-copy-txt)'
    return re.sub(unseen, '<div data-search-exclude class="', content)


def _formula(latex: str, tag: str) -> str:
    return convert(latex) if tag == "span" else f'<div class="formula">{convert(latex, display="block")}</div>'


def on_post_page(output: str, **_: object) -> str:
    """Refuse a page that would load anything from elsewhere."""
    if found := re.search(r"<(?:script|img|iframe|link|source)\b[^>]*(?:src|href)=.?(https?:)?//[^>]*>", output):
        raise PluginError(f"{found[0]} is not on this site: put it into docs/")
    return output


def _moved(text: str, source: str, page: str) -> str:
    """Return a page of the repository with links that hold where the site has it."""
    homes = {source: page for page, source in COPIES.items()}
    up = "../" * page.count("/")

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        file = (Path(source).parent / target).as_posix()
        file = str((ROOT / file).resolve().relative_to(ROOT))
        if file in homes:
            return f"[{words}]({up}{homes[file]}{anchor})"
        if file.startswith("docs/"):
            return f"[{words}]({up}{file.removeprefix('docs/')}{anchor})"
        return words if words.startswith("`") else f"{words} (`{file}`)" if words != file else f"`{file}`"

    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*|)\)", link, text)


def _settings() -> str:
    from fedpm.config import describe, presets

    lines = [
        "# Settings",
        "",
        "Every key, for TOML files, `--set KEY=VALUE`, and keywords of `fedpm.run`, with its default.",
        "`auto` is settled for the algorithm and the data; `config.toml` of a run folder says what it came to.",
        "`fedpm keys` prints the same.",
        "",
        "## Presets",
        "",
        "Sets of settings with a name, to start from: `fedpm run --preset NAME`, or the first argument of `fedpm.run`.",
        "Keys that a preset does not name have their defaults.",
        "",
        "| preset | what it is |",
        "|---|---|",
        *(f"| `{name}` | {_cell(about)} |" for name, about in reversed(presets().items())),
    ]
    rows = describe()
    for table, keys in groupby(rows, key=lambda row: row[0].rpartition(".")[0]):
        lines += ["", f"## {table or 'The run'}", "", "| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {_code(default)} | {_parts(_cell(meaning))} |" for key, default, meaning in keys]
    return "\n".join(lines) + "\n"


def _commands() -> str:
    from fedpm.cli import command_line

    lines = ["# Commands", "", "`fedpm COMMAND --help` prints the same.", ""]
    for name, command in _walk("fedpm", get_command(command_line(helping=False))):
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## {name}", "", f"`{name} {usage}`", "", (command.help or "").replace("\f", ""), ""]
        options = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
        if options and not isinstance(command, click.Group):
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| {_code(option)} | {_cell(meaning)} |" for option, meaning in options] + [""]
    return "\n".join(lines)


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child, below in command.commands.items():
            if not below.hidden:
                yield from _walk(f"{name} {child}", below)


def _parts(meaning: str) -> str:
    """Return a meaning with a line for each of the parts that it lists in brackets."""
    what, _, listed = meaning.removesuffix(")").partition(" (")
    parts = re.split(r"; (?=[a-z0-9-]+: )", listed)
    if len(parts) < 2 or not all(re.match(r"[a-z0-9-]+: ", part) for part in parts):
        return meaning
    return "<br>".join([what, *(re.sub(r"^([a-z0-9-]+)", r"`\1`", part) for part in parts)])


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
