"""Flower's simulation: clients in the actors of a Ray on this machine, or of the cluster that RAY_ADDRESS names."""

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from queue import Empty, Queue
from typing import Any, NoReturn

from fedpm.engines.base import Clients, Reply, Task
from fedpm.engines.flower import Limits
from fedpm.engines.flower.environment import LOOPBACK, require_flower
from fedpm.errors import EngineError
from fedpm.processes import interrupts_blocked

require_flower()  # before the imports below, which read the environment

import ray  # noqa: E402
import ray._private.node  # noqa: E402
import ray._private.ray_constants  # noqa: E402
from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from fedpm.engines.flower import messages, node  # noqa: E402
from fedpm.engines.flower.grid import Fleet  # noqa: E402

_IDLE_PARTS = ("start_monitor", "start_log_monitor", "start_api_server")
"""What Ray starts for autoscaling, logs and a dashboard: three processes that a simulation has no use for."""
_MAX_PATH = 48
"""Characters of a folder in which Ray can still name its sockets: the system allows them 107."""


class Simulation:
    """Runs each client as a node of Flower's own simulation; this process is the server."""

    def __init__(self, clients: Clients, total: int, workers: int, limits: Limits) -> None:
        self._done = threading.Event()
        self._failed: list[BaseException] = []
        self._home = tempfile.TemporaryDirectory(prefix="fedpm-flower-")
        os.environ.setdefault("FLWR_HOME", self._home.name)  # where Flower would leave files behind
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # errors of clients are counted and shown as faults
        self._sigterm = signal.getsignal(signal.SIGTERM)
        _start_ray(workers * clients.threads, self._home.name)
        _on_sigterm(_interrupt)  # Ray's own handler prints a trace of C++ and aborts
        grids: Queue[Grid] = Queue()
        # an actor that dies starts anew: else Flower gives the dead one message after message, and all are lost
        resources = {"client_resources": {"num_cpus": clients.threads, "num_gpus": 0, "max_restarts": -1}}
        nodes = client_app(ray.put(clients), total), total, resources
        self._thread = threading.Thread(target=self._serve, args=(grids, *nodes), daemon=True)
        self._thread.start()
        self._fleet = Fleet(self._grid(grids), clients, limits, total=total, pause=0.1, say=_say)

        self.quorum = limits.quorum

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the answers in order."""
        yield from self._fleet.run(round, tasks)

    def close(self) -> None:
        """End the simulation and its processes."""
        self._done.set()
        self._thread.join(timeout=60)
        ray.shutdown()
        _on_sigterm(self._sigterm)
        if os.environ.get("FLWR_HOME") == self._home.name:
            del os.environ["FLWR_HOME"]
        self._home.cleanup()

    def _serve(self, grids: Queue[Grid], app: ClientApp, total: int, resources: dict[str, Any]) -> None:
        """Let Flower simulate, in a thread of its own, while the round loop uses its Grid."""
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._done.wait()

        try:
            run_simulation(server, app, total, backend_config=resources)
        except BaseException as error:
            self._failed.append(error)

    def _grid(self, grids: Queue[Grid]) -> Grid:
        while self._thread.is_alive():
            try:
                return grids.get(timeout=0.5)
            except Empty:
                continue
        self.close()
        raise EngineError(f"Flower's simulation did not start: {self._failed or 'it gives no reason'}")


def client_app(reference: Any, total: int) -> ClientApp:
    """Return the app of simulated nodes; each actor reads the clients from Ray's store, by their reference there."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return messages.write_hosted(message, messages.clients_of(context, total))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        request = messages.read_request(message)
        answer, memory = node.answer(_fetched(reference), request, messages.recall(context))
        messages.remember(context, memory)
        return messages.write_answer(message, answer)

    return app


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Clients:
    clients: Clients = ray.get(reference)
    return clients


def _start_ray(cores: int, home: str) -> None:
    """Start a Ray for this machine alone, or join the cluster that the user names."""
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" not in os.environ:
        os.environ.update(LOOPBACK)
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # the same for this process, which has read the other
        options["num_cpus"] = cores
        if len(home) < _MAX_PATH:
            options["_temp_dir"] = home  # which is removed in the end
    with interrupts_blocked(), warnings.catch_warnings(), _without(_IDLE_PARTS):
        warnings.simplefilter("ignore")
        try:
            ray.init(**options)
        except SystemExit:  # Ray's way to hear of SIGTERM
            raise KeyboardInterrupt from None
        except Exception as error:
            raise EngineError(f"Ray, which runs the simulated clients, did not start: {error}") from None


@contextmanager
def _without(parts: Sequence[str]) -> Iterator[None]:
    """Keep Ray from starting some of its parts."""
    node = ray._private.node.Node
    before = {part: getattr(node, part) for part in parts}
    for part in parts:
        setattr(node, part, lambda self, **options: None)
    try:
        yield
    finally:
        for part, start in before.items():
            setattr(node, part, start)


def _interrupt(number: int, frame: object) -> NoReturn:
    """End like after Ctrl-C: what was started is ended, and what was saved is kept."""
    raise KeyboardInterrupt


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # no other may choose
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
