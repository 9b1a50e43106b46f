"""The app folder that ``flwr run`` takes."""

from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fedpm.config import Config, settings_of
from fedpm.errors import ArtifactError
from fedpm.files import write_atomically
from fedpm.registry import CODERS, METHODS

FILES = ("README.md", "model.py", "data.py")


def init(folder: Path, config: Config) -> None:
    """Write an app folder with these settings; one that holds anything is refused."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder} exists and is not empty: choose another folder for the app")
    folder.mkdir(parents=True, exist_ok=True)
    name = _name(folder.resolve().name)
    template = resources.files("fedpm.engines.flower.deploy") / "template"
    for file in FILES:
        write_atomically(folder / file, (template / file).read_bytes())
    write_atomically(folder / "pyproject.toml", tomli_w.dumps(_project(name, config)).encode())


def _project(name: str, config: Config) -> dict[str, Any]:
    """Return the pyproject.toml; Flower lets a run replace only what stands in it, so all settings do."""
    settings = settings_of(config.model_copy(update={"engine": "flower"}))
    if METHODS[config.algorithm].masks:  # with which any coder can be chosen
        settings |= {name: config.table(name).model_dump() for spec in CODERS for name in spec.tables}
    settings = {key: value for key, value in settings.items() if key not in ("workers", "engine")}
    app = {
        "publisher": "local",
        "components": {
            "serverapp": "fedpm.engines.flower.deploy.server:app",
            "clientapp": "fedpm.engines.flower.deploy.client:app",
        },
        "config": {"app": {"out": f"runs/{name}", "network": "", "data": ""}, **settings},
    }
    project = {
        "name": name,
        "version": "1.0.0",
        "description": "Federated learning at a fraction of a bit per parameter",
        "license": "Apache-2.0",
        "dependencies": [f"fedpm[flower]=={version('fedpm')}"],
    }
    return {"project": project, "tool": {"flwr": {"app": app}}}


def _name(folder: str) -> str:
    """Return a folder's name as a project may be called."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in folder.lower()).strip("-")
    return name or "app"
