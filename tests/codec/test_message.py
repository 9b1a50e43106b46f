import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.codec.message import OVERHEAD, Kind, Message
from fedpm.errors import WireError

MESSAGE = Message(Kind.UPLOAD, fingerprint=0x1122334455667788, round=3, client=9, body=b"body")
GOLDEN = bytes.fromhex("4644504d01020000887766554433221103000000090000000400000000000000")  # magic … body length


def test_bytes_are_as_documented() -> None:
    data = MESSAGE.to_bytes()
    assert data[:32] == GOLDEN
    assert data[OVERHEAD:] == b"body"
    assert Message.from_bytes(data) == MESSAGE


@pytest.mark.parametrize("bit", range(8 * (OVERHEAD + 4)))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(MESSAGE.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        Message.from_bytes(bytes(data))


@pytest.mark.parametrize("length", range(OVERHEAD + 4))
def test_every_cut_is_noticed(length: int) -> None:
    with pytest.raises(WireError):
        Message.from_bytes(MESSAGE.to_bytes()[:length])


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Message.from_bytes(data)


def test_a_version_of_the_future_is_named() -> None:
    data = bytearray(MESSAGE.to_bytes())
    data[4] = 9
    with pytest.raises(WireError, match="version 9: this library reads version 1"):
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
def test_a_message_of_another_exchange_is_refused_by_field(change: dict[str, int], named: str) -> None:
    due = {"kind": Kind.UPLOAD, "fingerprint": MESSAGE.fingerprint, "round": 3, "client": 9}
    assert MESSAGE.expect(**due) is MESSAGE
    with pytest.raises(WireError, match=f"another exchange: {named}"):
        MESSAGE.expect(**{**due, **change})
