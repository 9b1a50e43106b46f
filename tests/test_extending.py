"""Parts of your own, without touching fedpm: docs/extending.md tells this file as a story."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedpm
from fedpm import registry
from fedpm.aggregation.base import Folded
from fedpm.config import load
from fedpm.data.datasets import Dataset
from fedpm.errors import ConfigError, WireError
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.model.masking import MaskedNetwork
from fedpm.registry import AggregatorSpec, CoderSpec, Settings, register, setting
from fedpm.report import page
from fedpm.rng import Streams
from fedpm.study.definition import load as load_study
from fedpm.study.runner import prepare, run_all
from fedpm.wire.coders.base import Context
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask, sample_mask, upload_uniform
from fedpm.wire.theta import Vector
from tests.report.light import svg_alone
from tests.small import small_config, small_net

ROOT = Path(__file__).parents[1]


class Float16:
    """Changes of weights in 16 bits, large ones cut off."""

    def __init__(self, largest: float) -> None:
        self.largest = largest

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        data = delta.clip(-self.largest, self.largest).astype("<f2").tobytes()
        return Quantised(Coded(data, 8.0 * len(data)), paper_bpp=16.0)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        if len(data) != 2 * network.size:
            raise WireError(f"change of {len(data)} bytes: should be {2 * network.size}; it was cut or padded")
        return np.frombuffer(data, "<f2").astype(np.float32)


class Float16Settings(Settings):
    """The quantiser ``float16``."""

    largest: float = setting(1.0, "bound of a change of a weight", gt=0)


register_quantiser(
    "float16",
    "Half floats",
    about="changes of weights in 16 bits",
    form=64,
    quantiser=lambda settings: Float16(settings.largest),
    settings=Float16Settings,
)


class PlainBits:
    """A mask as it is, eight bits to a byte."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        mask = sample_mask(theta, upload_uniform(private, len(theta)))
        data = np.packbits(mask).tobytes()
        return mask, Coded(data, float(len(mask)))

    def decode(self, data: bytes, context: Context) -> Mask:
        if len(data) != -(-context.size // 8):
            raise WireError(f"mask of {len(data)} bytes: should be {context.size} bits; it was cut or padded")
        return np.unpackbits(np.frombuffer(data, np.uint8), count=context.size)


register(
    CoderSpec(
        name="plain-bits",
        label="plain bits",
        about="a bit a parameter, uncoded",
        build=lambda settings: PlainBits(),
        form=65,
    )
)


class TrimmedMean:
    """The mean without the highest and the lowest, number by number: one client alone cannot pull it far."""

    sums = False

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        total: npt.NDArray[Any] = np.zeros(size, dtype)
        high = low = total
        count = 0
        for vector in vectors:
            high, low = (np.maximum(high, vector), np.minimum(low, vector)) if count else (vector, vector)
            total = total + vector
            count += 1
        return Folded(total - high - low, count - 2) if count > 2 else Folded(total, count)


register(
    AggregatorSpec(
        name="trimmed-mean",
        label="trimmed mean",
        about="the mean without the highest and the lowest",
        build=lambda settings: TrimmedMean(),
    )
)

OWN: dict[str, dict[str, Any]] = {
    "quantiser": {"algorithm": "float16", "float16": {"largest": 0.5}},
    "coder": {"codec": "plain-bits"},
    "aggregator": {"aggregator": "trimmed-mean"},
    "aggregator of changes": {"aggregator": "trimmed-mean", "algorithm": "fedavg"},
}
every_part = pytest.mark.parametrize("settings", OWN.values(), ids=OWN)


@pytest.mark.slow
@every_part
def test_a_run_learns_with_a_part_of_your_own(settings: dict[str, Any], data: Dataset) -> None:
    result = fedpm.run(small_config(rounds=6, data={}, local={"epochs": 6}, **settings), net=small_net(), data=data)
    assert result.summary["accuracy"] > 0.5
    assert not any(record["rejected"] for record in result.rounds)


def test_the_bytes_are_those_of_the_part(data: Dataset) -> None:
    for name, bits in (("quantiser", 16), ("coder", 1)):
        result = fedpm.run(small_config(rounds=1, **OWN[name]), net=small_net(), data=data)
        overhead = 8 * 36 / result.summary["parameters"]
        assert result.rounds[0]["uplink_bpp"] == pytest.approx(bits + overhead, abs=0.01)


@pytest.mark.flower
def test_both_engines_give_the_same_model() -> None:
    from tests.engines.flower.test_grid import nodes, train

    quick: dict[str, Any] = {"rounds": 1, "local": {"epochs": 1}, **OWN["aggregator"]}  # all four parts in two runs
    config = small_config(**quick, **OWN["coder"])
    simulated = fedpm.run(config.model_copy(update={"engine": "flower"}), net=small_net())
    with nodes(range(4), 4, **quick, **OWN["quantiser"]) as cluster:  # without Ray, which takes seconds to start
        served = train(cluster, cluster.fleet(quorum=4, deadline=60))
    for there, here in ((simulated, config), (served, small_config(**quick, **OWN["quantiser"]))):
        alone = fedpm.run(here, net=small_net())
        assert there.file.to_bytes() == alone.file.to_bytes()
        assert there.rounds[0]["uplink_bytes"] == alone.rounds[0]["uplink_bytes"]


def test_settings_and_errors_know_the_part() -> None:
    assert load(None, ["algorithm=float16", "float16.largest=2.0"]).table("float16") == Float16Settings(largest=2.0)
    for override, words in (
        ("algorithm=float61", "did you mean 'float16'?"),
        ("codec=plainbits", "did you mean 'plain-bits'?"),
        ("aggregator=trimed-mean", "did you mean 'trimmed-mean'?"),
        ("float16.largest=-1", "float16.largest = -1: should be greater than 0"),
        ("float16.larges=1", "did you mean float16.largest?"),
    ):
        with pytest.raises(ConfigError) as error:
            load(None, [override])
        assert words in str(error.value)


BOTH = """
import sys
from contextlib import suppress
from fedpm.cli import main

for words in (["run", "--help"], ["keys"]):
    sys.argv = ["fedpm", *words]
    with suppress(SystemExit):
        main()
    print("-- told --")
"""


@pytest.mark.slow
def test_help_lists_the_part_of_a_plugin() -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, registry.PLUGINS: "tests.test_extending", "PYTHONPATH": path, "COLUMNS": "200"}
    program = [sys.executable, "-c", BOTH]
    told = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    shown, keys, _ = told.split("-- told --")
    for name, about in (
        ("float16", "changes of weights in 16 bits"),
        ("plain-bits", "a bit a parameter"),
        ("trimmed-mean", "the mean without"),
    ):
        assert re.search(rf" {name}\b", shown)
        assert f"{name}: {about}" in " ".join(keys.split())
    assert re.search(r"float16\.largest +1\.0 +bound of a change", keys)


def test_a_plugin_that_cannot_be_imported_is_named() -> None:
    environment = {**os.environ, registry.PLUGINS: "no_such_module"}
    program = [sys.executable, "-m", "fedpm", "run", "--set", "rounds=1"]
    failed = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr.startswith("fedpm: FEDPM_PLUGINS = no_such_module: cannot be imported (ModuleNotFoundError")
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_report_calls_the_part_by_its_label(data: Dataset, tmp_path: Path) -> None:
    for name in ("float16", "fedavg"):
        config = small_config(rounds=2, local={"epochs": 1}, algorithm=name)
        fedpm.run(config, net=small_net(), data=data, out=tmp_path / "runs" / name)
    with svg_alone():
        text = page.write([tmp_path / "runs"], tmp_path / "report").read_text()
    assert "Half floats" in text
    assert "FedAvg" in text


@pytest.mark.slow
def test_a_study_runs_the_part_in_processes_of_its_own(tmp_path: Path) -> None:
    text = 'title = "Own"\naxes = { algorithm = ["float16"] }\n[settings]\nrounds = 1\n'
    settings = {"local.epochs": 1, "clients.total": 2, "data.train_examples": 60, "model.name": '"conv4-slim"'}
    file = tmp_path / "own.toml"
    file.write_text(text + "".join(f'"{key}" = {value}\n' for key, value in settings.items()))
    study = load_study(str(file))
    prepare(tmp_path / "out", study)
    assert run_all(study.runs(1, ["workers=1"]), tmp_path / "out", processes=2) == {}


def test_names_and_numbers_that_are_taken_are_refused() -> None:
    spec = CoderSpec(name="frequency", label="", about="", build=lambda settings: PlainBits(), form=99)
    with pytest.raises(
        ConfigError, match=r"registers a part that fedpm\.wire\.coders\.frequency has registered before"
    ):
        register(spec)
    with pytest.raises(ConfigError, match="1 on the wire means frequency already; choose another number, from 64"):
        register(CoderSpec(name="other", label="", about="", build=lambda settings: PlainBits(), form=1))
    assert "other" not in registry.CODERS


def test_the_story_is_this_file() -> None:
    story, code = (ROOT / "docs" / "extending.md").read_text(), Path(__file__).read_text()
    blocks = [block.split("```")[0].strip() for block in story.split("```py\n")[1:]]
    assert len(blocks) >= 3
    assert all(block in code for block in blocks)
