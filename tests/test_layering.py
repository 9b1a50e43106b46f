"""A module imports only from those above it in this list."""

import ast
from pathlib import Path

import pytest

import fedpm

ORDER = [
    "errors", "files", "wording", "rng", "config", "participation", "data", "nets", "masking", "optimiser", "training",
    "privacy", "codec", "algorithms", "engines", "evaluation", "packing", "artifact", "export", "checkpoint", "methods",
    "experiment", "exchange", "board", "observe", "rounds", "flower", "bench", "study", "report", "cli",
]  # fmt: skip
ROOT = Path(fedpm.__file__).parent
FILES = [file for file in sorted(ROOT.rglob("*.py")) if file != ROOT / "__init__.py"]


def imported_layers(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fedpm":
            found |= {f"fedpm.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: use absolute imports"
            found.add(node.module or "")
    return {name.split(".")[1] for name in found if name.startswith("fedpm.")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_upwards(file: Path) -> None:
    own = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if own not in ("presets", "studies"):
        assert ORDER.index(own) >= max((ORDER.index(layer) for layer in imported_layers(file)), default=0)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_stay_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 250
