"""The app that SuperNodes run."""

import os
import pickle
import subprocess
import sys
import time
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpm.config.sections import ClientsConfig
from fedpm.engines.flower import messages
from fedpm.engines.flower.deploy import preloaded
from fedpm.engines.flower.node import Answer, Memory, Request
from fedpm.processes import kill_group

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    return messages.write_hosted(message, _hosted(context))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a broadcast as one of this node's clients."""
    request, hosted = messages.read_request(message), _hosted(context)
    if request.client not in hosted:
        return messages.write_answer(message, Answer(fault="absent", reason=f"this node hosts clients {hosted} only"))
    left = request.limit - max(0.0, time.time() - message.metadata.created_at)  # when the server stops waiting
    answer, memory = supervised(context, request, messages.recall(context), left)
    messages.remember(context, memory)
    return messages.write_answer(message, answer)


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
    try:
        code, output = preloaded.work(job, seconds) or _started(job, seconds)
    except (TimeoutError, subprocess.TimeoutExpired):
        return Answer(fault="silent", reason=f"its work was ended at the deadline, after {seconds:.0f} s"), memory
    if code != 0:
        return Answer(fault="crashed", reason=f"the client's process ended with code {code}"), memory
    answer_and_memory: Any = pickle.loads(output)  # noqa: S301 - from the process that was started above
    return answer_and_memory[0], answer_and_memory[1]


def _started(job: dict[str, Any], seconds: float) -> tuple[int, bytes]:
    """Start a process for the work, which has yet to import all that it needs, where no preloaded one can be had."""
    # -P: nothing is imported from the folder in which the node was started
    command = [sys.executable, "-P", "-m", "fedpm.engines.flower.deploy.worker", str(os.getpid())]
    worker = subprocess.Popen(  # noqa: S603 - our own words
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    try:
        output, _ = worker.communicate(pickle.dumps(job), timeout=seconds)
    finally:
        kill_group(worker)
    return worker.returncode, output


def _hosted(context: Context) -> list[int]:
    total = context.run_config.get("clients.total", ClientsConfig().total)
    return messages.clients_of(context, int(total))
