"""Whole messages and model files: golden bytes, and what becomes of damaged ones."""

import hashlib
import random
from contextlib import suppress

import pytest

from fedpm.errors import ArtifactError, WireError
from tests.fuzzing import Target, damaged, targets

TARGETS = targets()
OTHERS = [target.genuine for target in TARGETS]

# Golden: the first 16 hex digits of SHA-256. A change is a change of a format and needs a new version of it.
GOLDEN = {
    "frequency": "42ae3f6a68cc217b",
    "frequency seed": "b29f2a869226af2e",
    "frequency full": "ac7fd17f432febcd",
    "frequency brief": "53929dd5b1fa2d2b",
    "frequency steps": "8be3c6e8a5160b22",
    "side-information": "0bbb4efac14f07ad",
    "side-information seed": "b29f2a869226af2e",
    "side-information full": "ac7fd17f432febcd",
    "side-information brief": "53929dd5b1fa2d2b",
    "side-information steps": "8be3c6e8a5160b22",
    "shared-randomness": "0262d34011a7b299",
    "shared-randomness seed": "b29f2a869226af2e",
    "shared-randomness full": "ac7fd17f432febcd",
    "shared-randomness brief": "bfceb87f8ca4cd29",
    "shared-randomness steps": "35d305573dc895dc",
    "relative-entropy": "76a79cf33db90457",
    "relative-entropy seed": "66842747056893ee",
    "relative-entropy full": "2fd902b4cb99197b",
    "relative-entropy brief": "0283aace22eafae1",
    "relative-entropy steps": "8f568c4c147e0eae",
    "fedmask frequency": "73d5c6edd313d5d1",
    "fedmask side-information": "53a917fee6c640c0",
    "fedavg": "b1cb31569c468eb8",
    "signsgd": "024d5396103eebf9",
    "terngrad": "e30fca2849137b1a",
    "qsgd": "40745d8f84d71e66",
    "drive": "8f4a670149e27679",
    "eden": "9e18a1a5c907e08e",
    "eden half": "de9719afafba7923",
    "eden two": "98a72888e412f856",
    "dense seed": "a80803cf6c0bf138",
    "dense float32": "92df3c99bdb6e8ba",
    "dense bfloat16": "9df895ccebd06868",
    "model file": "d26e54bf81a20c90",
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_bytes_are_the_same_in_every_release(target: Target) -> None:
    assert hashlib.sha256(target.genuine).hexdigest()[:16] == GOLDEN[target.name]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_damaged_message_is_refused_and_never_read_wrongly(target: Target) -> None:
    rng = random.Random(1)  # noqa: S311
    right = target.read(target.genuine)
    refused = 0
    for _ in range(300):
        try:
            assert target.read(damaged(target.genuine, OTHERS, rng)) == right  # another form of the same
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
