"""Uploads decoded in processes beside the server, one or some of them for each core.

They are handed on one by one, in order, so that every rule of aggregation works as if the server had decoded them; or
a process adds up those that it decoded, and hands on one message (``methods.mask.sums``).
"""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, cast

from fedpm.children import Child, ready
from fedpm.engines.base import Reply
from fedpm.errors import EngineError, WireError
from fedpm.experiment.build import Experiment
from fedpm.methods.base import ClientResult, Method, Staged
from fedpm.methods.mask.sums import MaskSum, SubAggregator, Subtotal, SummedFedPM, read_subtotal

PATIENCE = 600.0
"""Seconds after which a process that owes an answer and uses no processor time is given up."""


def decoded(method: Method[Any, Any], state: Any, replies: Iterator[Reply]) -> Iterator[tuple[Reply, Any]]:
    """Yield every reply with its decoded upload, or the WireError that says why it is none; decoded in this process."""
    for reply in replies:
        answer = reply.answer
        if isinstance(answer, ClientResult):
            yield reply, _decoded(method, state, reply.client, answer.payload)
        else:
            yield reply, WireError(answer.reason, answer.kind)


def _decoded(method: Method[Any, Any], state: Any, client: int, payload: bytes) -> Any:
    try:
        return method.decode(state, client, payload)
    except WireError as error:
        return error


class Decoders:
    """Processes that decode; however many uploads there are, only a few of them are held at once."""

    def __init__(self, method: Method[Any, Any], count: int) -> None:
        self._method, self._children = method, list[Child]()
        try:
            for _ in range(count):
                self._children.append(Child(_work, method, patience=PATIENCE))
            for child in self._children:
                child.receive()
        except BaseException as error:
            self.close()
            if not isinstance(error, EngineError | pickle.PicklingError | AttributeError | TypeError):
                raise
            raise EngineError(
                f"processes that decode could not start ({error}): a network of your own should be importable from a "
                "module, or be defined in a script's file before its first run; or use decoders=1"
            ) from None

    def decoded(self, state: Any, replies: Iterator[Reply]) -> Iterator[tuple[Reply, Any]]:
        """Yield every reply in order, with its decoded upload, or the WireError that it is."""
        self._begin(state)
        waiting, results = dict[int, Reply](), dict[int, Any]()
        turn = 0
        for number, result in self._answers(replies, waiting):
            results[number] = result
            while turn in results:
                yield waiting.pop(turn), results.pop(turn)
                turn += 1

    def summed(self, state: Any, replies: Iterator[Reply]) -> tuple[list[tuple[Reply, Any]], MaskSum | None]:
        """Return every reply in order, without its upload but with the WireError that it is, and the sum of the masks.

        A process whose own message is refused takes its clients along.
        """
        method = cast(SummedFedPM, self._method)
        self._begin(state, sums=True)
        came, waiting = dict[int, tuple[Reply, Any]](), dict[int, Reply]()
        given = [dict[int, int]() for _ in self._children]
        for number, answer in self._answers(replies, waiting):
            reply = waiting.pop(number)
            if isinstance(answer, WireError):
                came[number] = reply, answer
            else:
                came[number] = _without_upload(reply), None
                given[answer][reply.client] = number
        parts = list[Subtotal]()
        for place, (child, numbers) in enumerate(zip(self._children, given, strict=True)):
            refused = dict[int, WireError]()
            try:
                parts.append(read_subtotal(method, state, place, numbers, self._ask(child, None)))
                refused = parts[-1].refused
            except WireError as error:
                refused = dict.fromkeys(numbers, error)
            for client, why in refused.items():
                came[numbers[client]] = came[numbers[client]][0], why
        ordered = [came[number] for number in sorted(came)]
        clients = [reply.client for reply, why in ordered if why is None]
        return ordered, method.total(state, parts, clients) if clients else None

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()
        self._children = []

    def _begin(self, state: Any, *, sums: bool = False) -> None:
        arrays = self._method.to_arrays(state)
        try:
            for number, child in enumerate(self._children):  # all at once: reading it takes a while
                child.send((arrays, number if sums else None))
            for child in self._children:
                self._received(child)
        except EngineError as error:
            raise _ended(error) from None

    def _ask(self, child: Child, message: Any) -> Any:
        try:
            child.send(message)
            return self._received(child)
        except EngineError as error:
            raise _ended(error) from None

    def _received(self, child: Child) -> Any:
        answer = child.receive()
        if isinstance(answer, Exception) and not isinstance(answer, WireError):
            raise answer
        return answer

    def _answers(self, replies: Iterator[Reply], waiting: dict[int, Reply]) -> Iterator[tuple[int, Any]]:
        """Give the processes the uploads; yield each reply's number with the answer, and note the reply meanwhile."""
        idle, running = list(self._children), dict[Child, int]()
        try:
            for number, reply in enumerate(replies):
                waiting[number] = reply
                if not isinstance(reply.answer, ClientResult):
                    yield number, WireError(reply.answer.reason, reply.answer.kind)
                    continue
                while not idle or len(waiting) > 4 * len(self._children):
                    for child in ready(running):
                        yield running.pop(child), self._received(child)
                        idle.append(child)
                child = idle.pop()
                running[child] = number
                child.send((reply.client, reply.answer.payload))
            while running:
                for child in ready(running):
                    yield running.pop(child), self._received(child)
        except EngineError as error:
            raise _ended(error) from None
        finally:
            if running:  # broken off: what they would still send belongs to no round
                self.close()


def _without_upload(reply: Reply) -> Reply:
    answer = reply.answer
    return replace(reply, answer=replace(answer, payload=b"")) if isinstance(answer, ClientResult) else reply


def start_decoders(experiment: Experiment) -> Decoders | None:
    """Start the processes that decode, None if the server does so itself."""
    method = experiment.method
    if isinstance(method, Staged) or (experiment.decoders == 1 and not isinstance(method, SummedFedPM)):
        return None
    return Decoders(method, experiment.decoders)


def _ended(error: EngineError) -> EngineError:
    return EngineError(
        f"a process that decodes ended unexpectedly ({error}); nothing that was saved is lost: resume, with fewer "
        "decoders if memory was short"
    )


def _work(pipe: Connection, method: Method[Any, Any]) -> None:
    """Answer the server: a state begins a round, an upload is decoded or added, None asks for the sum."""
    pipe.send("ready")
    state, adding = None, None
    number = None
    while True:
        message = pipe.recv()
        try:
            if message is None and adding is not None:
                answer: Any = adding.message()
            elif isinstance(message[0], dict):
                arrays, number = message
                state = method.from_arrays(arrays)
                adding = None if number is None else SubAggregator(method, state, number)  # type: ignore[arg-type]
                answer = None
            elif adding is not None:
                adding.add(*message)
                answer = number
            else:
                answer = _decoded(method, state, *message)
        except Exception as error:
            answer = EngineError(f"decoding failed: {type(error).__name__}: {error}")
        pipe.send(answer)
