"""Colours that colour-blind people can tell apart, in light and in dark, and what else all figures share."""

import re
from typing import Any

from fedpm.registry import METHODS

INK, MUTED, GRID, PAPER = "#1f2328", "#636c76", "#d7dde3", "#ffffff"
PALETTE = {
    # Okabe and Ito's, but for two that are too light on white: light, dark
    "blue": ("#0072b2", "#58aee8"),
    "vermilion": ("#d55e00", "#ff8f50"),
    "green": ("#009e73", "#3ccfa3"),
    "purple": ("#b0578d", "#e29ac8"),
    "orange": ("#c98500", "#f2b53a"),
    "sky": ("#3a9bd9", "#93d2f8"),
    "wine": ("#7d2248", "#d9789f"),
    "grey": ("#7a7a7a", "#a8a8a8"),
    "olive": ("#6b7a00", "#b5c334"),
    "brown": ("#8a4b1f", "#d39a6b"),
    "indigo": ("#3f3d9e", "#9c9af0"),
}
_OTHERS = {
    "ink": (INK, "#e6edf3"),
    "muted": (MUTED, "#9aa5b1"),
    "grid": (GRID, "#2f3742"),
    "paper": (PAPER, "#0f141a"),
}
_LIGHT, _DARK = ({name: both[side] for name, both in (PALETTE | _OTHERS).items()} for side in (0, 1))
DASHES = ["solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (8, 2)), (0, (2.5, 1.2))]
RC: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 10, "axes.titlesize": 10.5, "axes.titlelocation": "left",
    "axes.edgecolor": MUTED, "axes.labelcolor": MUTED, "axes.labelsize": 9.5, "axes.titlecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.7, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "text.color": INK, "svg.fonttype": "none", "pdf.fonttype": 42,
    "lines.solid_capstyle": "round", "figure.dpi": 100,
}  # fmt: skip


def colour(label: str, place: int) -> str:
    """Return the colour of a series: a method keeps its own everywhere, others take the next one."""
    methods = METHODS.names()
    first = re.split(r"[^a-z0-9_-]", label.lower())[0]
    names = list(PALETTE)
    return PALETTE[names[(methods.index(first) if first in methods else place) % len(names)]][0]


def variables() -> str:
    """Return the colours as CSS, light and dark."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in colours.items()) for colours in (_LIGHT, _DARK))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def on_white(svg: bytes) -> bytes:
    """Return a figure's SVG, which has no ground, on white: to draw it again takes far longer."""
    inside = svg.index(b">", svg.index(b"<svg")) + 1
    return svg[:inside] + f'\n <rect width="100%" height="100%" fill="{PAPER}"/>'.encode() + svg[inside:]


def inline(svg: str, name: str) -> str:
    """Return a figure's SVG for a page: its colours are the page's, its text is the page's, its names its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    for variable, value in _LIGHT.items():
        svg = svg.replace(value, f"var(--{variable})")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for attribute in ('id="', "url(#", 'href="#'):
        svg = svg.replace(attribute, f"{attribute}{name}-")
    return re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", svg))


PANELS = 8
"""Panels of a figure that has one for each group, at most."""
BLUE = (0x1A / 255, 0x84 / 255, 0xCC / 255)
"""Of pictures: between that of the light and that of the dark page."""


def panel_width(panels: int) -> float:
    """Return how wide panels are, so that text is as large in a half as in a whole page's width."""
    return {1: 4.6, 2: 2.2}.get(panels, 2.6)
