"""Whole messages and model files: golden bytes, and what becomes of damaged ones."""

import hashlib
import random
from contextlib import suppress

import pytest

from fedpm.errors import ArtifactError, WireError
from tests.fuzzing import Target, damaged, strangers, targets

TARGETS = targets()
OTHERS = [target.genuine for target in TARGETS]

# Golden: the first 16 hex digits of SHA-256. A change is a change of a format and needs a new version of it.
GOLDEN = {
    "frequency": "bc6a312aa23eb311",
    "frequency seed": "ec21bf42b81ef9d9",
    "frequency full": "1defbff83bd5de33",
    "frequency brief": "a43dac1372856635",
    "frequency steps": "2bf556a8cc598320",
    "side-information": "20ba22e469a311b0",
    "side-information seed": "ec21bf42b81ef9d9",
    "side-information full": "1defbff83bd5de33",
    "side-information brief": "a43dac1372856635",
    "side-information steps": "2bf556a8cc598320",
    "shared-randomness": "c0808aba9a5e39c7",
    "shared-randomness seed": "ec21bf42b81ef9d9",
    "shared-randomness full": "1defbff83bd5de33",
    "shared-randomness brief": "b34a491d62250822",
    "shared-randomness steps": "665c6b577e931911",
    "relative-entropy": "d4b5d56376791ed3",
    "relative-entropy seed": "61a97547577a5147",
    "relative-entropy full": "f75c92475e33e3d9",
    "relative-entropy brief": "ec340d225e44ae06",
    "relative-entropy steps": "2ee9d228c3264bdb",
    "secure-sum": "d4d0e1d00e615d23",  # which stays on the client; its messages are those of tests/secure
    "secure-sum seed": "ec21bf42b81ef9d9",
    "secure-sum full": "1defbff83bd5de33",
    "secure-sum brief": "a43dac1372856635",
    "secure-sum steps": "2bf556a8cc598320",
    "fedmask frequency": "54549db776c379a4",
    "fedmask side-information": "ce3070ab5ef229cc",
    "fedmask secure-sum": "04a523e1c391728e",
    "fedavg": "b5add9f438f24345",
    "signsgd": "7714d5371a68f2c1",
    "terngrad": "2b456d181ca2ecf5",
    "qsgd": "49637985f6bae5e7",
    "drive": "80aab991d61e8754",
    "eden": "697a4c6ea7c93e90",
    "eden half": "20530a6e88b08905",
    "eden two": "c22f9a3bddb58ca8",
    "fedmrn": "87e8fd55abec30d5",
    "fedmrn signed": "6d258c4e10e2ca2e",
    "dense seed": "3bee419bd0ec4e74",
    "dense float32": "e08556fff6ed21cc",
    "dense bfloat16": "09f7903472615b77",
    "dense relayed": "ffd07397d8b462b5",
    "dense relayed steps": "7bcc7ccf924be073",
    "dense quantised": "e3216e36f0554359",
    "dense quantised steps": "e43f05890ebcec38",
    "hidenseek": "4fb3856f87e7c66e",
    "frl": "3336522a565d1fbc",
    "frl orders": "2c350bf32c908c30",
    "model file": "9f96b29edba4f7e3",
    "model file over a base": "f4f0afd280bedae2",
    "sum of masks": "e271ad1190f1cb8e",
    "model file of signs": "4fee192da29cebea",
    "over a base": "1e4cfcc7cd18101e",
    "over a base, full": "99f7a990f2325d72",
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_bytes_are_the_same_in_every_release(target: Target) -> None:
    assert hashlib.sha256(target.genuine).hexdigest()[:16] == GOLDEN[target.name]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_damaged_message_is_refused_and_never_read_wrongly(target: Target) -> None:
    rng = random.Random(1)  # noqa: S311
    right, others = target.read(target.genuine), strangers(target, TARGETS)
    refused = 0
    for _ in range(300):
        try:
            assert target.read(damaged(target.genuine, others, rng)) == right  # another form of the same
        except (WireError, ArtifactError):
            refused += 1
    assert refused > 200


def test_the_brief_form_is_used_where_it_is_shorter() -> None:
    lengths = {target.name: len(target.genuine) for target in TARGETS}
    assert lengths["shared-randomness brief"] < lengths["side-information brief"] < lengths["side-information full"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_forged_messages_do_no_harm(target: Target) -> None:
    rng = random.Random(2)  # noqa: S311
    expected = len(target.read(target.genuine))
    for _ in range(300):
        with suppress(WireError, ArtifactError):  # any other error fails the test
            assert len(target.read(target.forged(damaged(target.genuine, OTHERS, rng)))) == expected
