"""The process that does a client's work on a fleet: it reads a request, and writes an answer.

It is started by the app on the node, which watches it: a crash here becomes an answer there, and so does silence.
"""

import os
import pickle
import sys
import traceback
from dataclasses import replace
from typing import Any

from fedpm.engines.flower.node import Answer, Memory, Request, answer, mark_of, proceed
from fedpm.processes import end_with_parent


def main() -> None:
    """Do one piece of work, from standard input to standard output; the argument is the number of the parent."""
    end_with_parent(int(sys.argv[1]))
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a hook prints must not be taken for the answer
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the app that started this process
    with channel:
        pickle.dump(answered(**job), channel)


def answered(
    *, path: list[str], run: dict[str, Any], node: dict[str, Any], request: Request, memory: Memory
) -> tuple[Answer, Memory]:
    """Do a client's work, and return its answer and what the node remembers; what goes wrong is an answer too."""
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    try:
        if request.stage:
            return proceed(request, memory)
        from fedpm.engines.flower.deploy.identity import signing
        from fedpm.engines.flower.deploy.settings import AppSettings

        columns = request.columns or memory.columns
        if mark_of(columns) != request.mark:
            return Answer(fault="lacks", reason="its node does not know the names of the server's columns"), memory
        experiment = AppSettings.read(run, node).build(request.client, columns)
        return answer(signing(experiment.clients, node), request, replace(memory, columns=columns))
    except Exception as error:
        traceback.print_exc()
        return Answer(fault="error", reason=f"{type(error).__name__}: {error}"), memory


if __name__ == "__main__":
    main()
