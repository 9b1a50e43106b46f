"""A message of every stage of a secure sum, and what its receiver makes of any bytes in its place."""

from functools import partial

from fedpm.secure.messages import (
    OVERHEAD,
    SEALED,
    SIGNATURE,
    Stage,
    frame,
    pack_advert,
    pack_records,
    unframe,
    unpack_advert,
    unpack_choice,
    unpack_records,
)
from fedpm.secure.session import Session
from fedpm.secure.shamir import SHARE
from fedpm.secure.vectors import Vectors
from tests.fuzzing import Target
from tests.secure.sums import Run, session


def genuine_messages(agreed: Session) -> dict[Stage, bytes]:
    """Return what passes between the server and client 0, by stage."""
    run, found = Run(agreed), {}
    while True:
        stage = run.server.stage
        if stage is not Stage.ADVERTISE:
            found[Stage(stage - 1)] = run.told[0]
        run.step()
        found[stage] = run.sent[stage][0]
        if stage is Stage.REVEAL:
            return found


def secure_targets() -> list[Target]:
    """Return a message of every stage; its bytes are other ones every time."""
    agreed = session(5)
    return [
        Target(f"secure {stage.name.lower()}", data, partial(read, agreed, stage), partial(forged, agreed, stage))
        for stage, data in genuine_messages(agreed).items()
    ]


def forged(agreed: Session, stage: Stage, data: bytes) -> bytes:
    """Return damaged bytes under a head that is right."""
    return frame(agreed, stage, 0, data[OVERHEAD:])


def read(agreed: Session, stage: Stage, data: bytes) -> bytes:
    """Return what a decoder understood, written again."""
    body = unframe(agreed, stage, 0, data)
    match stage:
        case Stage.ADVERTISE:
            return pack_advert(unpack_advert(body))
        case Stage.MASKED:
            vectors = Vectors(agreed.parts)
            vectors.add_bytes(body)
            return vectors.to_bytes()
    sizes = {Stage.KEYS: 96 + SIGNATURE, Stage.REQUEST: 1, Stage.REVEAL: 1 + SHARE}
    records = unpack_records(body, sizes.get(stage, SEALED))
    for record in records.values() if stage in (Stage.REQUEST, Stage.REVEAL) else ():
        unpack_choice(record)
    return pack_records(records)
