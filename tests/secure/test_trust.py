"""What clients refuse a server, and either of them any bytes that are not due."""

import pickle
import random
import struct
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, SECP521R1, generate_private_key

from fedpm.errors import EngineError, WireError
from fedpm.secure.client import Client
from fedpm.secure.messages import OVERHEAD, Advert, Secret, Stage, frame, pack_advert, pack_records, unframe
from fedpm.secure.session import Session
from tests.fuzzing import damaged
from tests.secure.fuzzing import genuine_messages
from tests.secure.sums import Run, open_sum, session

FIVE = session(5)


def request(client: int, asked: dict[int, int]) -> bytes:
    records = {owner: bytes([secret]) for owner, secret in asked.items()}
    return frame(FIVE, Stage.REQUEST, client, pack_records(records))


ALL = dict.fromkeys(range(5), int(Secret.SEED))


@pytest.fixture
def revealing() -> Client:
    """Client 0 of five that sent their inputs."""
    return Run(FIVE).until(Stage.REVEAL).clients[0]


def test_both_secrets_of_one_client_are_refused_in_one_request(revealing: Client) -> None:
    body = pack_records(dict.fromkeys(range(5), b"\x01"))
    twice = body[:10] + struct.pack("<IB", 1, Secret.KEY) + body[10:]
    with pytest.raises(WireError, match="two records of client 1: there is one for each"):
        revealing.reveal(frame(FIVE, Stage.REQUEST, 0, twice))


def test_both_secrets_of_one_client_are_refused_in_two_requests(revealing: Client) -> None:
    revealing.reveal(request(0, ALL))
    with pytest.raises(WireError, match="takes each step of a secure sum once"):
        revealing.reveal(request(0, {**ALL, 1: Secret.KEY}))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({**ALL, 0: Secret.KEY}, "its input would lie open"),
        ({owner: ALL[owner] for owner in range(4)}, r"asked about clients \[0, 1, 2, 3\] instead of"),
        ({**ALL, 7: Secret.KEY}, "asked about clients"),
        ({**ALL, 1: 3}, "secret of kind 3"),
        ({**ALL, 1: Secret.KEY, 2: Secret.KEY, 3: Secret.KEY}, "2 of the clients around 0 sent inputs, fewer than"),
    ],
)
def test_requests_that_would_open_an_input_are_refused(revealing: Client, asked: dict[int, int], said: str) -> None:
    with pytest.raises(WireError, match=said):
        revealing.reveal(request(0, asked))


def test_one_share_tells_one_secret(revealing: Client) -> None:
    told = unframe(FIVE, Stage.REVEAL, 0, revealing.reveal(request(0, {**ALL, 4: Secret.KEY})))
    assert [(record[0], record[1]) for record in struct.iter_unpack("<IB17s", told)] == [
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 2),
    ]  # fmt: skip


def test_an_input_is_masked_once() -> None:
    run = Run(FIVE).until(Stage.MASKED)
    run.answer(0)
    with pytest.raises(WireError, match="once"):
        run.answer(0)


def test_too_few_keys_or_shares_are_refused() -> None:
    run = Run(FIVE).until(Stage.SHARES)
    with pytest.raises(WireError, match="1 of the clients around 0 advertised keys, fewer than the threshold of 3"):
        run.clients[0].share(frame(FIVE, Stage.KEYS, 0, b""))
    run = Run(FIVE).until(Stage.MASKED)
    with pytest.raises(WireError, match="1 of the clients around 0 shared secrets"):
        run.clients[0].mask(frame(FIVE, Stage.DELIVERY, 0, b""), run.values[0])


def test_keys_of_strangers_are_refused() -> None:
    advert = pack_advert(Advert(bytes(32), bytes(32), bytes(32)))
    one = Client(FIVE, 0)
    one.advertise()
    with pytest.raises(WireError, match=r"clients \[9\] are none of those that client 0 knows"):
        one.share(frame(FIVE, Stage.KEYS, 0, pack_records(dict.fromkeys((1, 2, 3, 9), advert))))


@pytest.mark.parametrize("curve", [SECP256R1, SECP384R1, SECP521R1])
def test_signed_keys_sum_and_exchanged_ones_are_refused(curve: type[SECP384R1]) -> None:
    nodes = {client: generate_private_key(curve()) for client in range(3)}
    signers = {client: key.public_key() for client, key in nodes.items()}
    agreed = session(3)

    def make(session: Session, client: int) -> Client:
        return Client(session, client, nodes[client], signers)

    run = Run(agreed, make)
    assert run.sum() == open_sum(run.values, range(3))

    def stranger(session: Session, client: int) -> Client:
        return Client(session, client, nodes[2] if client == 1 else nodes[client], signers)

    run = Run(agreed, stranger).until(Stage.SHARES)
    with pytest.raises(WireError, match="keys of client 1 are not signed by its node"):
        run.answer(0)


def test_clients_can_be_kept_between_the_stages_and_nodes_keep_their_keys() -> None:
    nodes = {client: generate_private_key(SECP384R1()) for client in range(3)}
    signers = {client: key.public_key() for client, key in nodes.items()}
    run = Run(session(3), lambda agreed, client: Client(agreed, client, nodes[client], signers))
    for stage in (Stage.ADVERTISE, Stage.SHARES, Stage.MASKED, Stage.REVEAL):
        assert run.server.stage is stage
        run.step()
        run.clients = {client: pickle.loads(pickle.dumps(one)) for client, one in run.clients.items()}  # noqa: S301
        assert all(one._key is None for one in run.clients.values())
    assert [part.tolist() for part in run.server.sum()] == open_sum(run.values, range(3))
    assert {one.due for one in run.clients.values()} == {None}


def test_unsigned_keys_and_unknown_nodes_are_refused() -> None:
    key = generate_private_key(SECP384R1()).public_key()
    for signers, said in (
        ({1: key, 2: key}, "not signed by its node"),
        ({}, "no key of the node of client 1 is known"),
    ):
        run = Run(session(3), partial(Client, signers=signers)).until(Stage.SHARES)
        with pytest.raises(WireError, match=said):
            run.answer(0)


def test_a_share_that_was_tampered_with_is_left_out() -> None:
    run = Run(FIVE).until(Stage.MASKED)
    told = bytearray(run.told[0])
    body = told[OVERHEAD:]
    body[20] ^= 1  # in what client 1 sealed for client 0
    run.told[0] = frame(FIVE, Stage.DELIVERY, 0, bytes(body))
    assert run.sum() == open_sum(run.values, range(5))
    told_by_0 = unframe(FIVE, Stage.REVEAL, 0, run.sent[Stage.REVEAL][0])
    assert [owner for owner, _ in struct.iter_unpack("<I18s", told_by_0)] == [0, 2, 3, 4]


def test_a_false_share_spoils_no_sum_unseen() -> None:
    run = Run(FIVE).until(Stage.REVEAL)
    body = bytearray(unframe(FIVE, Stage.REVEAL, 0, run.answer(0)))
    body[-1] ^= 1  # of client 4
    run.server.receive(0, frame(FIVE, Stage.REVEAL, 0, bytes(body)))
    for client in range(1, 5):
        run.server.receive(client, run.answer(client))
    with pytest.raises(EngineError, match="the shares told of client 4 do not fit: some client lied"):
        run.server.sum()


def test_keys_of_low_order_are_refused() -> None:
    advert = Advert(bytes(32), bytes(32), bytes(32))
    with pytest.raises(WireError, match="low order"):
        Run(FIVE).server.receive(0, frame(FIVE, Stage.ADVERTISE, 0, pack_advert(advert)))


def test_messages_of_other_sums_clients_and_stages_are_refused() -> None:
    data = Client(FIVE, 0).advertise()
    for due, said in (
        ((session(5, context=b"round 2"), Stage.ADVERTISE, 0), "another secure sum"),
        ((FIVE, Stage.ADVERTISE, 1), "client 0 instead of 1"),
        ((FIVE, Stage.SHARES, 0), "stage 1 instead of 3"),
    ):
        with pytest.raises(WireError, match=said):
            unframe(*due, data)


def test_a_client_that_shares_another_secret_than_it_advertised_is_found_out() -> None:
    run = Run(FIVE).until(Stage.SHARES)
    run.clients[4]._seed = bytes(16)
    with pytest.raises(EngineError, match="client 4 do not fit"):
        run.sum()
    run = Run(FIVE).until(Stage.SHARES)
    run.clients[4]._secret = bytes(16)
    with pytest.raises(EngineError, match="client 4 do not fit"):
        run.sum({Stage.MASKED: [4]})


OTHERS = list(genuine_messages(session(5, context=b"another round")).values())


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARES, Stage.MASKED, Stage.REVEAL])
def test_any_bytes_are_read_or_refused(stage: Stage) -> None:
    """Damage in transit never passes; a forger's bytes, whose checksum is right, are a message or a WireError."""
    rng = random.Random(stage)  # noqa: S311
    run = Run(FIVE).until(stage)
    genuine = run.answer(0)
    for _ in range(200):
        wrong = damaged(genuine, OTHERS, rng)
        for data in (wrong if wrong != genuine else b"", rng.randbytes(rng.randrange(100))):
            with pytest.raises(WireError):
                run.server.receive(0, data)
        forged = frame(FIVE, stage, 0, damaged(genuine[OVERHEAD:], OTHERS, rng))
        again = Run(FIVE).server if stage is Stage.ADVERTISE else None
        try:
            (again or run.server).receive(0, forged)
        except WireError:
            continue
        run.server._answered.discard(0)


@pytest.mark.parametrize("stage", [Stage.SHARES, Stage.MASKED, Stage.REVEAL])
def test_clients_survive_any_bytes(stage: Stage) -> None:
    rng = random.Random(stage)  # noqa: S311
    run = Run(FIVE).until(stage)
    genuine, one = run.told[0], run.clients[0]
    adverts = dict(one._adverts)
    for _ in range(200):
        for data, whole in ((damaged(genuine, OTHERS, rng), False), (damaged(genuine[OVERHEAD:], OTHERS, rng), True)):
            one._due, one._adverts = stage, dict(adverts)
            run.told[0] = frame(FIVE, Stage(stage - 1), 0, data) if whole else data
            try:
                run.answer(0)
            except WireError:
                continue
            assert whole or data == genuine, "damage in transit was accepted"
