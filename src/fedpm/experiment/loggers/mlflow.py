"""MLflow: a run of its experiment ``fedpm``, at the tracking URI that is set, or in the run folder's ``mlflow``."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedpm.errors import ConfigError
from fedpm.experiment.loggers import About, scalars
from fedpm.experiment.observers import Observer
from fedpm.experiment.record import RoundRecord
from fedpm.files import make_folder, write_atomically

EXPERIMENT = "fedpm"
_PARAMS = 100
"""Parameters that MLflow takes at once."""


@contextmanager
def log(about: About) -> Iterator[Observer]:
    """Write settings as parameters and a round's scalars as metrics; a resumed run goes on in the same run."""
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    try:
        client = _client(about)
        run = _run(client, about)
    except MlflowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"mlflow = true: {reason}; check MLFLOW_TRACKING_URI") from None

    def write(record: RoundRecord) -> None:
        now = int(time.time() * 1000)
        figures = scalars(record, about.layers).items()
        client.log_batch(run, metrics=[Metric(name, value, now, record["round"]) for name, value in figures])

    status = "FAILED"
    try:
        yield write
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        client.set_terminated(run, status)


def _client(about: About) -> Any:
    import mlflow
    from mlflow import MlflowClient

    if mlflow.is_tracking_uri_set():
        return MlflowClient()
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it prefers databases, which need more packages
    return MlflowClient(tracking_uri=(about.folder / "mlflow").resolve().as_uri())


def _run(client: Any, about: About) -> str:
    """Return the id of the run: that of the run folder, which is told there, or a new one."""
    from mlflow.entities import Param

    known = about.folder / "mlflow" / "run_id"
    if known.is_file():
        run = known.read_text().strip()
        client.update_run(run, status="RUNNING")
        return run
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    run = str(client.create_run(number, run_name=about.folder.resolve().name).info.run_id)
    params = [Param(key, str(value)) for key, value in about.settings.items()]
    for first in range(0, len(params), _PARAMS):
        client.log_batch(run, params=params[first : first + _PARAMS])
    make_folder(known.parent)
    write_atomically(known, run.encode())
    return run
