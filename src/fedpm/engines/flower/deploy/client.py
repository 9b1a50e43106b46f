"""The app that SuperNodes run."""

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpm.config.sections import ClientsConfig
from fedpm.engines.flower import records
from fedpm.engines.flower.environment import end_with_parent
from fedpm.engines.flower.work import Answer, Memory, Request

app = ClientApp()
if Path(sys.argv[0]).name.startswith("flwr-clientapp"):
    # Flower's own exit can hang if its SuperNode is killed; os.getppid() would be too late if it was killed already
    parent = int(sys.argv[sys.argv.index("--parent-pid") + 1]) if "--parent-pid" in sys.argv else os.getppid()
    threading.Thread(target=end_with_parent, args=(parent, 10.0), daemon=True).start()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    return records.reply_hosted(message, context, _total(context))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a broadcast as one of this node's clients."""
    request = records.read_request(message)
    hosted = records.clients_of(context, _total(context))
    if request.client not in hosted:
        return records.reply(message, Answer(fault="absent", reason=f"this node hosts clients {hosted} only"))
    left = request.limit - max(0.0, time.time() - message.metadata.created_at)  # when the server stops waiting
    answer, memory = supervised(context, request, records.recall(context), left)
    records.remember(context, memory)
    return records.reply(message, answer)


def supervised(context: Context, request: Request, memory: Memory, seconds: float) -> tuple[Answer, Memory]:
    """Let a process of its own do the work: one that crashes or hangs holds up neither this node nor the server."""
    if seconds <= 0:
        return Answer(fault="silent", reason="the deadline had passed before this node could start"), memory
    job = {
        "path": sys.path,
        "run": dict(context.run_config),
        "node": dict(context.node_config),
        "request": request,
        "memory": memory,
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "fedpm.engines.flower.deploy.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        written, _ = worker.communicate(pickle.dumps(job), timeout=seconds)
    except subprocess.TimeoutExpired:
        return Answer(fault="silent", reason=f"its work was ended at the deadline, after {seconds:.0f} s"), memory
    finally:
        worker.kill()
        worker.wait()
    if worker.returncode != 0:
        return Answer(fault="crashed", reason=f"the client's process ended with code {worker.returncode}"), memory
    done: Any = pickle.loads(written)  # noqa: S301 - from the process that was started above
    return done[0], done[1]


def _total(context: Context) -> int:
    return int(context.run_config.get("clients.total", ClientsConfig().total))
