"""The process that does a client's work on a fleet: it reads a request, and writes an answer.

It is started by the app on the node, which watches it: a crash here becomes an answer there, and so does silence.
"""

import os
import pickle
import sys
import threading
import traceback
from typing import Any

from fedpm.engines.flower.environment import end_with_parent
from fedpm.engines.flower.node import answer
from fedpm.engines.flower.work import Answer, Memory, Request


def main() -> None:
    """Do one piece of work, from standard input to standard output."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a hook prints must not be taken for the answer
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the app that started this process
    with channel:
        pickle.dump(_done(**job), channel)


def _done(
    path: list[str], run: dict[str, Any], node: dict[str, Any], request: Request, memory: Memory
) -> tuple[Answer, Memory]:
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    try:
        from fedpm.engines.flower.deploy.settings import Settings

        experiment = Settings.read(run, node).build(request.client)
        return answer(experiment.clients, request, memory)
    except Exception as error:
        traceback.print_exc()
        return Answer(fault="error", reason=f"{type(error).__name__}: {error}"), memory


if __name__ == "__main__":
    main()
