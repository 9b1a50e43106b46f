"""A package imports only from itself and from those above it in this list, and files stay short."""

import ast
import re
from pathlib import Path

import fedpm
from fedpm.registry import METHODS

ORDER = [
    "errors", "files", "processes", "children", "registry", "rng", "config", "wire", "secure", "data", "model",
    "training", "privacy", "aggregation", "methods", "engines", "experiment", "engines.flower.deploy", "study",
    "report", "cli",
]  # fmt: skip
"""The apps of a fleet run the whole loop, so ``engines.flower.deploy`` stands above the loop and its engines below."""
ROOT = Path(fedpm.__file__).parent
FILES = [file for file in sorted(ROOT.rglob("*.py")) if file not in (ROOT / "__init__.py", ROOT / "__main__.py")]


def layer(module: str) -> str:
    """Return the layer of a module, by its longest name in the list."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ORDER), module)


def imported_layers(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: use absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {layer(name.removeprefix("fedpm.")) for name in found if name.startswith("fedpm.")}


def test_imports_point_upwards() -> None:
    wrong = []
    for file in FILES:
        path = file.relative_to(ROOT).with_suffix("")
        allowed = ORDER[: ORDER.index(layer(".".join(path.parts))) + 1]
        wrong += [f"{path} imports {found}" for found in imported_layers(file) if found not in allowed]
    assert not wrong


def test_files_stay_short() -> None:
    long = {str(file.relative_to(ROOT)): size for file in FILES if (size := file.read_text().count("\n")) > 250}
    assert not long


def test_a_method_is_named_in_its_own_file_and_in_the_registry_alone() -> None:
    texts = {file: file.read_text().lower() for file in FILES}
    for spec in METHODS:
        if not spec.build.__module__.startswith("fedpm.") or spec.name == "fedpm":  # which is the package's name too
            continue
        named = {file.stem for file, text in texts.items() if re.search(rf"\b{re.escape(spec.name)}\b", text)}
        assert named == {spec.name, "registry"}
