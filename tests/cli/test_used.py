"""Settings of parts that a run does not have: they would be taken, and mean nothing."""

from pathlib import Path

import pytest

import fedpm
from tests import command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("eden.bits=0.5", "eden.bits belongs to algorithm = 'eden', but it is 'fedpm'"),
        (
            "trimmed_votes.share=0.2",
            "trimmed_votes.share belongs to aggregator = 'trimmed-votes', but it is 'peer-filter'",
        ),
        ("algorithm=eden fedpm.effort=bits", "fedpm.effort belongs to algorithm = 'fedpm', but it is 'eden'"),
        ("algorithm=eden codec=frequency", "codec says how masks are coded, and algorithm = 'eden' sends none"),
        (
            "algorithm=eden relative_entropy.budget=3.0",
            "relative_entropy.budget says how masks are coded, and algorithm = 'eden' sends none",
        ),
    ],
)
def test_a_key_of_a_part_that_is_not_chosen_is_refused(words: str, sentence: str, tmp_path: Path) -> None:
    settings = [word for setting in words.split() for word in ("--set", setting)]
    done = command.fedpm("run", *settings, "--set", "model.name=conv4-slim", "--out", tmp_path / "run")
    assert (done.code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert not (tmp_path / "run").exists()
    with pytest.raises(fedpm.ConfigError, match=r"^eden.bits belongs to algorithm = 'eden'"):
        fedpm.run(eden={"bits": 0.5})


def test_a_key_of_a_part_that_auto_chose_is_taken(tmp_path: Path) -> None:
    small = ["rounds=1", "local.epochs=1", "model.name=conv4-slim", "data.train_examples=100", "workers=1"]
    settings = [word for one in (*small, "peer_filter.factor=9.0") for word in ("--set", one)]
    assert command.fedpm("run", *settings, "--out", tmp_path / "run").code == 0
    assert "factor = 9.0" in (tmp_path / "run" / "config.toml").read_text()
