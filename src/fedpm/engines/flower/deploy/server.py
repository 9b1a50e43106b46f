"""The app that the SuperLink runs: the round loop, over Flower's Grid."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.serverapp import Grid, ServerApp

from fedpm.config import flattened, load, settings_of
from fedpm.engines.flower import limits_of
from fedpm.engines.flower.deploy import bells
from fedpm.engines.flower.deploy.nodes import owned_clients
from fedpm.engines.flower.deploy.settings import AppSettings
from fedpm.engines.flower.grid import Fleet
from fedpm.errors import ConfigError
from fedpm.experiment.api import resume, run
from fedpm.experiment.build import Experiment
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.observers import Callback, Round
from fedpm.experiment.record import complaints, headline, in_rounds, log_line

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or continue what an earlier run left in ``app.out``: a run that was killed is simply started again."""
    settings = AppSettings.read(context.run_config)
    folder = Path(settings.out)

    def start(experiment: Experiment) -> Fleet:
        how = experiment.start
        limits = limits_of(how.settings, how.per_round)
        owned = owned_clients(how.clients)
        if owned is None:
            _say("no node is bound to its clients (fedpm flower register): which clients a node hosts is its own word")
        columns = experiment.dataset.columns
        about: dict[str, Any] = {"total": how.clients, "columns": columns, "owned": owned}
        return Fleet(grid, experiment.clients, limits, **about, bell=bell, say=_say)

    show = _show(settings.config.rounds)
    options: dict[str, Any] = {**settings.hooks(None), "on_round": show, "progress": False, "start": start}
    with closing(NodesBell()) as bell:
        if (folder / "config.toml").is_file():
            check_continues(settings, folder)
            _say(f"continuing the run in {folder.resolve()}")
            result = resume(folder, flower=settings.config.table("flower").model_dump(), **options)
        else:
            result = run(settings.config, out=folder, **options)
    summary = result.summary
    _say(f"test {headline(summary, 4)} ({summary['mode']}) after {in_rounds(summary['rounds'])}")
    _say(f"folder    {folder.resolve()}")


class NodesBell:
    """The bell that the gate rings for nodes which have answered, and the server's hand on the gate's."""

    def __init__(self) -> None:
        self._bell, self._known = bells.Bell(bells.SERVER), dict[bytes, int]()

    def ring(self, node: int) -> None:
        """Have a node that waits for messages look now."""
        question = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        self._known[question] = node
        bells.ring(bells.GATE, question)

    def wait(self, seconds: float) -> set[int]:
        """Return nodes that were sent something and ask again: they have answered, or will not."""
        end = time.monotonic() + seconds
        while True:
            heard = self._bell.wait(max(0.0, end - time.monotonic()))
            nodes = {self._known[question] for question in heard & self._known.keys()}
            if nodes or time.monotonic() >= end:
                return nodes

    def close(self) -> None:
        """Take the bell down."""
        self._bell.close()


def check_continues(settings: AppSettings, folder: Path) -> None:
    """Refuse to continue a run with settings that would change its results."""
    with RunFolder.open(folder) as opened:
        before = flattened(settings_of(load(opened.config_file), results_only=True))
    now = flattened(settings.build(None).provenance)
    changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if changed:
        raise ConfigError(
            f"app.out = {folder}: holds a run with other settings ({', '.join(changed)}); give another folder, or those"
        )


def _show(total: int) -> Callback:
    def show(round: Round) -> None:
        for sentence in (log_line(round.record, total), *complaints(round.record)):
            _say(sentence)

    return show


def _say(sentence: str) -> None:
    print(sentence, flush=True)
