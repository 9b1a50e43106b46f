"""Pages without PNG and PDF, which take most of the time; test_page.py sees that they are made."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure

from fedpm.report import figures


@contextmanager
def svg_alone() -> Iterator[None]:
    """Draw figures as SVG, and leave their other files empty."""
    draw = figures._rendered

    def rendered(figure: Figure, form: str) -> bytes:
        return draw(figure, form) if form == "svg" else b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_rendered", rendered)
        yield
