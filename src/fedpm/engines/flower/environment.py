"""How Flower and Ray are kept quiet and offline. Nothing here imports them: they read these variables at import."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from fedpm.errors import EngineError, install

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run fetches packages
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; else a round waits for one more at each of its ends
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning
}
"""No telemetry, no look for updates, no installations; and no long sleeps between looks for work."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Of a Ray that serves this machine alone: listen on 127.0.0.1, on Linux as elsewhere."""


def quiet() -> dict[str, str]:
    """Return the environment for Flower's commands; what the user set stays as it is."""
    user = dict(os.environ)
    programs = str(Path(sys.executable).parent)
    path = user.get("PATH", os.defpath).split(os.pathsep)
    unproxied = [host for host in user.get("NO_PROXY", "").split(",") if host]
    return {
        **QUIET,
        **user,
        "PATH": os.pathsep.join(dict.fromkeys([programs, *path])),  # Flower starts its own commands by name
        "NO_PROXY": ",".join(dict.fromkeys([*unproxied, "127.0.0.1", "localhost"])),
    }


def require_flower() -> None:
    """Raise EngineError where Flower is not installed, and keep it quiet where it is."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise EngineError(f"Flower is not installed: {install('flower')}")
    os.environ.update(quiet())
