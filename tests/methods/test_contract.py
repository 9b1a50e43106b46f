"""One contract for every algorithm: what the round loop, checkpoints and engines rely on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedpm
from fedpm.config import load
from fedpm.data.datasets import Dataset
from fedpm.engines.base import Task
from fedpm.engines.inprocess import Sequential, Workers
from fedpm.errors import WireError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.record import RoundRecord
from fedpm.methods.base import ClientResult, Method
from fedpm.registry import METHODS
from fedpm.rng import Streams
from fedpm.wire.message import OVERHEAD
from tests.conftest import small_config, small_net
from tests.experiment.test_loop import tapped_run, without_times
from tests.fuzzing import forged_message

NAMES = METHODS.names()
MASKS = {spec.name for spec in METHODS if spec.masks}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in NAMES},
    "fedpm by relative entropy": {"algorithm": "fedpm", "codec": "relative-entropy"},
    "fedmask by frequency": {"algorithm": "fedmask", "codec": "frequency"},
    "fedavg from bfloat16": {"algorithm": "fedavg", "dense": {"broadcast": "bfloat16"}},
    "fedavg with sgd": {"algorithm": "fedavg", "dense": {"optimiser": "sgd"}, "local": {"epochs": 2, "lr": 0.03}},
    "signsgd by vote": {"algorithm": "signsgd", "signsgd": {"vote": True}},
    "eden at 2 bits": {"algorithm": "eden", "eden": {"bits": 2.0}},
    "eden at half a bit": {"algorithm": "eden", "eden": {"bits": 0.5}},
}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
every_algorithm = pytest.mark.parametrize("name", NAMES)


def experiment(data: Dataset, settings: dict[str, Any]) -> Experiment:
    return build(small_config(**settings), net=small_net(), data=data)


def answers(made: Experiment, state: Any) -> list[ClientResult]:
    broadcast = made.method.broadcast(state).payload
    tasks = [Task(client, broadcast) for client in range(3)]
    replies = [reply.answer for reply in Sequential(made.clients).run(state.round + 1, tasks)]
    return [answer for answer in replies if isinstance(answer, ClientResult)]


def advanced(made: Experiment, state: Any) -> Any:
    algorithm = made.method
    return algorithm.aggregate(
        state, (algorithm.decode(state, c, r.payload) for c, r in enumerate(answers(made, state)))
    )


def same(method: Method[Any, Any], one: Any, other: Any) -> bool:
    arrays, others = method.to_arrays(one), method.to_arrays(other)
    return set(arrays) == set(others) and all(np.array_equal(array, others[name]) for name, array in arrays.items())


@every_variant
def test_rounds_change_the_network_and_are_the_same_again(settings: dict[str, Any], data: Dataset) -> None:
    made = experiment(data, settings)
    algorithm = made.method
    states = [algorithm.init()]
    for number in range(2):
        states.append(advanced(made, states[-1]))
        assert states[-1].round == number + 1
        assert same(algorithm, states[-1], advanced(experiment(data, settings), states[-2]))
        assert same(algorithm, states[-1], algorithm.from_arrays(algorithm.to_arrays(states[-1])))
    x = torch.from_numpy(data.test.x[:5])
    outputs = [algorithm.module(state, algorithm.final_modes[0])(x) for state in states]
    assert all(torch.isfinite(output).all() for output in outputs)
    assert not torch.equal(outputs[0], outputs[1])


@every_variant
def test_the_first_broadcast_is_a_seed(settings: dict[str, Any], data: Dataset) -> None:
    made = experiment(data, settings)
    start = made.method.init()
    assert len(made.method.broadcast(start).payload) <= OVERHEAD + 16
    quiet = made.method.aggregate(start, iter(()))
    assert quiet.round == 1
    assert len(made.method.broadcast(quiet).payload) <= OVERHEAD + 16


@every_variant
def test_an_upload_is_accepted_only_whole_and_in_its_place(settings: dict[str, Any], data: Dataset) -> None:
    made = experiment(data, settings)
    algorithm, start = made.method, made.method.init()
    payload = answers(made, start)[2].payload
    algorithm.decode(start, 2, payload)
    later = advanced(made, start)
    other = experiment(data, {**settings, "seed": 1}).method
    for state, client, sent, receiver in (
        (start, 1, payload, algorithm),  # another client's
        (later, 2, payload, algorithm),  # of the round before
        (start, 2, payload, other),  # of another federation
        (start, 2, b"", algorithm),
        (start, 2, payload[:-4], algorithm),
        (start, 2, payload + b"1234", algorithm),
        (start, 2, forged_message(payload[: OVERHEAD + (len(payload) - OVERHEAD) // 2]), algorithm),
        (start, 2, algorithm.broadcast(start).payload, algorithm),
    ):
        with pytest.raises(WireError):
            receiver.decode(state, client, sent)


@every_algorithm
def test_uploads_and_broadcasts_of_other_algorithms_are_refused(name: str, data: Dataset) -> None:
    mine = experiment(data, {"algorithm": name})
    state = mine.method.init()
    for other in set(NAMES) - {name}:
        foreign = experiment(data, {"algorithm": other})
        with pytest.raises(WireError, match="instead of"):
            mine.method.decode(state, 0, answers(foreign, foreign.method.init())[0].payload)
    foreign = experiment(data, {"algorithm": "drive" if name in MASKS else "fedpm"})
    broadcast = foreign.method.broadcast(advanced(foreign, foreign.method.init())).payload
    with pytest.raises(WireError):
        mine.method.client_update(broadcast, data.train, Streams(0).at(2, 0))


@every_variant
def test_an_interrupted_run_resumes_to_the_same_bytes(settings: dict[str, Any], data: Dataset, tmp_path: Path) -> None:
    config = small_config(**{"local": {"epochs": 1}, **settings})

    def stop(record: RoundRecord) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    whole = fedpm.run(config, net=small_net(), data=data, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fedpm.run(config, net=small_net(), data=data, out=tmp_path / "parts", on_round=stop)
    resumed = fedpm.resume(tmp_path / "parts", net=small_net(), data=data)
    assert resumed.file.to_bytes() == whole.file.to_bytes()
    assert (tmp_path / "parts" / whole.file.name).read_bytes() == whole.file.to_bytes()
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    written = load(tmp_path / "whole" / "config.toml")
    assert isinstance(written.local.lr, float), "the written settings show what auto came to"


@every_variant
def test_bytes_reported_are_bytes_sent(settings: dict[str, Any], data: Dataset) -> None:
    config = small_config(**{"local": {"epochs": 1}, **settings, "rounds": 2, "clients": {"total": 4, "sampled": 3}})
    result, tapped = tapped_run(config, data)
    assert [record["uplink_bytes"] for record in result.rounds] == tapped.up
    assert [record["downlink_bytes"] for record in result.rounds] == tapped.down
    assert result.summary["model_bytes"] == len(result.file.to_bytes())
    assert all((record["uplink_ideal_bpp"] or 0) <= record["uplink_bpp"] for record in result.rounds)
    assert not any(record["rejected"] for record in result.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedpm", "eden"])  # one of masks, one of weights: a worker knows no other difference
def test_worker_processes_give_the_same_bytes(name: str, data: Dataset) -> None:
    made = experiment(data, {"algorithm": name})
    state = advanced(made, made.method.init())
    tasks = [Task(client, made.method.broadcast(state).payload) for client in range(3)]
    workers = Workers(made.clients, 2)
    try:
        assert list(workers.run(2, tasks)) == list(Sequential(made.clients).run(2, tasks))
    finally:
        workers.close()


@pytest.mark.parametrize("name", sorted(set(NAMES) - MASKS))
def test_a_client_that_diverged_is_left_out_with_the_reason(name: str, data: Dataset) -> None:
    made = experiment(data, {"algorithm": name, "local": {"epochs": 3, "lr": 1e30}})
    algorithm, start = made.method, made.method.init()
    with pytest.raises(WireError, match="training diverged"):
        algorithm.decode(start, 0, answers(made, start)[0].payload)


@pytest.mark.parametrize("name", sorted(set(NAMES) - MASKS))
def test_weights_of_a_dense_run_load_into_the_plain_network(name: str, data: Dataset, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = small_config(algorithm=name, rounds=1, local={"epochs": 1})
    result = fedpm.run(config, net=small_net(), data=data, out=tmp_path / "run")
    plain = small_net()
    plain.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    x = torch.from_numpy(data.test.x[:5])
    assert torch.equal(plain.eval()(x), result.model(x))


def test_settings_that_the_ends_must_share_are_checked(data: Dataset) -> None:
    for name, key, values in (("qsgd", "levels", (0.25, 0.5)), ("eden", "bits", (1.0, 0.5))):
        one, other = (experiment(data, {"algorithm": name, name: {key: value}}) for value in values)
        state = one.method.init()
        with pytest.raises(WireError, match=rf"{name}\.{key} = {values[1]:g} instead of {values[0]:g}"):
            one.method.decode(state, 0, answers(other, state)[0].payload)


def test_rates_decay_and_the_vote_steps_by_one_rate(data: Dataset) -> None:
    made = experiment(data, {"algorithm": "signsgd", "signsgd": {"vote": True}, "dense": {"server_decay": 0.5}})
    start = made.method.init()
    for round, factor in ((0, 1.0), (2, 0.25)):
        state = replace(start, round=round)
        update = [made.method.decode(start, c, r.payload) for c, r in enumerate(answers(made, start))]
        moved = made.method.aggregate(state, update).weights - state.weights
        votes = np.sign(np.sum([u.delta for u in update], axis=0))
        rate = made.method.server_lr * factor  # type: ignore[attr-defined]
        np.testing.assert_allclose(moved, rate * votes, atol=1e-7)
