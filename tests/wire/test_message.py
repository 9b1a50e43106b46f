from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import WireError
from fedpm.wire.message import Kind, Message

MESSAGE = Message(
    Kind.UPLOAD, 3, 0x1122334455667788, round=3, client=9, coded=b"coded", stats=np.array([1, -2], np.float32)
)
GOLDEN = (
    "4644504d 02 02 03 00 8877665544332211 03000000 09000000 05000000 02000000"  # magic … lengths
    "dfa85b43 636f646564 0000803f 000000c0"  # checksum, coded part, statistics
)


def test_bytes_are_as_documented() -> None:
    data = MESSAGE.to_bytes()
    assert data.hex() == GOLDEN.replace(" ", "")
    found = Message.from_bytes(data)
    assert found.coded == b"coded"
    assert found.stats.tolist() == [1, -2]
    assert found.to_bytes() == data


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(MESSAGE.to_bytes())):
        data = bytearray(MESSAGE.to_bytes())
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            Message.from_bytes(bytes(data))


def test_every_cut_is_noticed() -> None:
    for length in range(len(MESSAGE.to_bytes())):
        with pytest.raises(WireError):
            Message.from_bytes(MESSAGE.to_bytes()[:length])


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Message.from_bytes(data)


def test_a_version_of_the_future_is_named() -> None:
    data = bytearray(MESSAGE.to_bytes())
    data[4] = 9
    with pytest.raises(WireError, match="version 9: this library reads 1 and 2"):
        Message.from_bytes(bytes(data))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": Kind.BROADCAST}, "kind"),
        ({"fingerprint": 1}, "model"),
        ({"round": 4}, "round"),
        ({"client": 1}, "client"),
    ],
)
def test_a_message_of_another_exchange_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    due: dict[str, Any] = {"kind": Kind.UPLOAD, "fingerprint": MESSAGE.fingerprint, "round": 3, "client": 9, "stats": 2}
    MESSAGE.expect(**due)
    with pytest.raises(WireError, match=f"another exchange: {named}"):
        MESSAGE.expect(**{**due, **change})


def test_statistics_of_a_diverged_client_are_refused() -> None:
    data = Message(Kind.UPLOAD, 1, 2, 3, 4, b"", np.array([np.nan], np.float32)).to_bytes()
    with pytest.raises(WireError, match="diverged"):
        Message.from_bytes(data)
