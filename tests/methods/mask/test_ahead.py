"""Where clients look ahead, everybody starts from the same θ: it predicts their masks, and codes them."""

import numpy as np
import pytest

from fedpm.methods.base import Broadcast
from fedpm.methods.mask.downlink import Form
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.history import Window
from fedpm.wire.message import Message
from tests.fuzzing import small
from tests.makers import make_fedpm, upload

CLIENTS, SILENT = range(6), (4, 7, 8)


def answering(number: int) -> list[int]:
    return [] if number in SILENT else [client for client in CLIENTS if (client + 2 * number) % 3 or client == 1]


@pytest.mark.parametrize("settings", [{"reset_every": 3}, {"kept": 2}])
@pytest.mark.parametrize("codec", ["shared-randomness", "relative-entropy", "secure-sum"])
def test_all_start_alike_whatever_they_were_sent_and_answer_whoever_goes_on(
    codec: str, settings: dict[str, int]
) -> None:
    def fresh() -> FedPM:
        return make_fedpm(small(60), codec, lookahead=0.6, **settings)

    server, state, forms = fresh(), fresh().init(), set[int]()
    held: dict[int, bytes] = {}
    for number in range(1, 12):
        resumed = fresh().from_arrays(server.to_arrays(state))
        whole = server.broadcast(state).payload
        assert fresh().broadcast(resumed).payload == whole
        for client in CLIENTS:
            since = server.holders(state).get(client)
            sent = server.broadcast(resumed if client % 2 else state, since=since).payload
            told = fresh().reader.read(sent, number, held[since] if since else b"")
            assert np.array_equal(told.start.floats(), state.start.floats())
            assert fresh().whole(sent, number, held[since] if since else b"") == whole
            forms.add(Message.from_bytes(sent).form)
        held[number] = whole
        known = fresh().received(whole, number)
        assert fresh().broadcast(known).payload == whole
        updates = [server.decode(state, client, upload(fresh(), known, client)) for client in answering(number)]
        state = server.aggregate(state if number % 2 else resumed, updates)
    assert forms >= {Form.SEED, Form.COUNTS, Form.BOTH, Form.STEPS}
    assert forms & {Form.GIVEN_COUNTS, Form.GIVEN_MASKS, Form.RELAYED}


def test_steps_are_kept_while_they_are_shorter_than_what_tells_two_rounds() -> None:
    full, whole, step, long = (Broadcast(bytes(length)) for length in (10, 20, 15, 20))
    window = Window(full, whole).then(full, whole, step, (3,), 1)
    assert window.steps == (step,)
    assert window.holders == {3: 1}
    assert window.then(full, whole, long, (3,), 2).steps == ()
