"""One contract for every algorithm: what the round loop, checkpoints and engines rely on."""

import math
import pickle
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
from fedpm.errors import EngineError, WireError
from fedpm.experiment.build import Experiment, build
from fedpm.experiment.round import Exchange
from fedpm.methods.base import ClientResult, Method, Staged
from fedpm.registry import METHODS
from fedpm.rng import Streams
from fedpm.wire.message import OVERHEAD, Message
from tests.engines.several import Several
from tests.experiment.test_loop import tapped_run, without_times
from tests.fuzzing import forged_message
from tests.small import small_config, small_net

NAMES = METHODS.names()
DENSE = sorted(spec.name for spec in METHODS if "dense" in spec.tables)
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in NAMES},
    "fedpm by relative entropy": {"algorithm": "fedpm", "codec": "relative-entropy"},
    "fedpm by mean": {"algorithm": "fedpm", "aggregator": "mean"},
    "fedpm by peer filter": {"algorithm": "fedpm", "aggregator": "peer-filter"},
    "fedpm by trimmed votes": {"algorithm": "fedpm", "aggregator": "trimmed-votes", "trimmed_votes": {"share": 0.4}},
    "fedpm by group median": {"algorithm": "fedpm", "aggregator": "group-median", "group_median": {"groups": 3}},
    "fedmask by flip filter": {"algorithm": "fedmask", "aggregator": "flip-filter"},
    "fedmask by frequency": {"algorithm": "fedmask", "codec": "frequency"},
    "fedpm by secure sum": {"algorithm": "fedpm", "codec": "secure-sum"},
    "fedmask by secure sum": {"algorithm": "fedmask", "codec": "secure-sum"},
    "fedavg from bfloat16": {"algorithm": "fedavg", "dense": {"broadcast": "bfloat16"}},
    "eden from float32": {"algorithm": "eden", "dense": {"broadcast": "float32"}},
    "fedavg by quantised steps": {"algorithm": "fedavg", "dense": {"broadcast": "quantised", "broadcast_bits": 2}},
    "fedavg with sgd": {"algorithm": "fedavg", "dense": {"optimiser": "sgd"}, "local": {"epochs": 2, "lr": 0.03}},
    "signsgd by vote": {"algorithm": "signsgd", "signsgd": {"vote": True}},
    "fedmrn with signs": {"algorithm": "fedmrn", "fedmrn": {"signed": True}},
    "hidenseek with a fifth": {"algorithm": "hidenseek", "hidenseek": {"keep": 0.2}},
    "eden at 2 bits": {"algorithm": "eden", "eden": {"bits": 2.0}},
    "eden at half a bit": {"algorithm": "eden", "eden": {"bits": 0.5}},
}
FEW: dict[str, Any] = {"local": {"epochs": 1}, "data": {"train_examples": 120, "test_examples": 60}}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
every_algorithm = pytest.mark.parametrize("name", NAMES)


def experiment(data: Dataset, settings: dict[str, Any]) -> Experiment:
    return build(small_config(**{**FEW, **settings}), net=small_net(), data=data)


def answers(made: Experiment, state: Any) -> list[ClientResult]:
    broadcast = made.method.broadcast(state).payload
    tasks = [Task(client, broadcast) for client in range(3)]
    replies = [reply.answer for reply in Sequential(made.clients).run(state.round + 1, tasks)]
    return [answer for answer in replies if isinstance(answer, ClientResult)]


def advanced(made: Experiment, state: Any) -> Any:
    algorithm = made.method
    if isinstance(algorithm, Staged):
        tasks = [Task(client, algorithm.broadcast(state).payload) for client in range(3)]
        stages, engine = algorithm.stages(state), Sequential(made.clients)
        return algorithm.aggregate(state, Exchange([0, 1, 2]).staged(stages, engine, state.round + 1, tasks))
    return algorithm.aggregate(
        state, (algorithm.decode(state, c, r.payload) for c, r in enumerate(answers(made, state)))
    )


def receive(method: Method[Any, Any], state: Any, client: int, payload: bytes) -> None:
    """Let the server take what a client sent first."""
    if isinstance(method, Staged):
        method.stages(state).receive(client, payload)
    else:
        method.decode(state, client, payload)


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
def test_clients_in_another_process_answer_the_same(settings: dict[str, Any], data: Dataset) -> None:
    made = experiment(data, settings)
    task = Task(1, made.method.broadcast(made.method.init()).payload)
    sent = pickle.loads(pickle.dumps(made.clients))  # noqa: S301 - as worker processes get them
    here, there = (next(iter(Sequential(clients).run(1, [task]))).answer for clients in (made.clients, sent))
    if not isinstance(made.method, Staged):  # whose keys are fresh each time
        assert isinstance(here, ClientResult)
        assert here == there


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
    receive(algorithm, start, 2, payload)
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
            receive(receiver, state, client, sent)


@pytest.fixture(scope="module")
def uploads(data: Dataset) -> dict[str, bytes]:
    """What client 0 of every algorithm sends first."""
    every = {name: experiment(data, {"algorithm": name}) for name in NAMES}
    return {name: answers(made, made.method.init())[0].payload for name, made in every.items()}


@pytest.fixture(scope="module")
def broadcasts(data: Dataset) -> dict[str, bytes]:
    """What the server sends after a round, with masks and with weights."""
    both = {name: experiment(data, {"algorithm": name}) for name in ("fedpm", "drive")}
    return {name: made.method.broadcast(advanced(made, made.method.init())).payload for name, made in both.items()}


@every_algorithm
def test_uploads_and_broadcasts_of_other_algorithms_are_refused(
    name: str, uploads: dict[str, bytes], broadcasts: dict[str, bytes], data: Dataset
) -> None:
    mine = experiment(data, {"algorithm": name}).method
    mine.decode(mine.init(), 0, uploads[name])
    for other in set(NAMES) - {name}:
        with pytest.raises(WireError, match="instead of"):
            mine.decode(mine.init(), 0, uploads[other])
    with pytest.raises(WireError):
        mine.client_update(broadcasts["fedpm" if name in DENSE else "drive"], data.train, Streams(0).at(2, 0))


@pytest.mark.slow
@every_variant
def test_an_interrupted_run_resumes_to_the_same_bytes(settings: dict[str, Any], data: Dataset, tmp_path: Path) -> None:
    config = small_config(**{**FEW, "clients": {"total": 3}, **settings})

    def stop(round: fedpm.Round) -> None:
        if round["round"] == 2:
            raise KeyboardInterrupt

    whole = fedpm.run(config, net=small_net(), data=data, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fedpm.run(config, net=small_net(), data=data, out=tmp_path / "parts", on_round=stop)
    resumed = fedpm.resume(tmp_path / "parts", net=small_net(), data=data)
    assert resumed.file.to_bytes() == whole.file.to_bytes()
    assert (tmp_path / "parts" / whole.file.name).read_bytes() == whole.file.to_bytes()
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    written = load(tmp_path / "whole" / "config.toml")
    assert written.model.init != "auto", "the written settings show what auto came to"
    assert isinstance(written.local.lr, float) or callable(METHODS[written.algorithm].tuned["local.lr"])


@every_variant
def test_bytes_reported_are_bytes_sent(settings: dict[str, Any], data: Dataset) -> None:
    config = small_config(**{**FEW, **settings, "rounds": 2, "clients": {"total": 4, "sampled": 3}})
    result, tapped = tapped_run(config, data)
    assert [record["uplink_bytes"] for record in result.rounds] == tapped.up
    assert [record["downlink_bytes"] for record in result.rounds] == tapped.down
    assert result.summary["model_bytes"] == len(result.file.to_bytes())
    assert all((record.get("uplink_ideal_bpp") or 0) <= record["uplink_bpp"] for record in result.rounds)
    assert not any(record["rejected"] for record in result.rounds)


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes(data: Dataset) -> None:
    kinds = [experiment(data, {"algorithm": name}) for name in ("fedpm", "eden", "hidenseek", "frl")]  # one of each
    several, tasks = Several([made.clients for made in kinds], each=3), list[Task]()
    for number, made in enumerate(kinds):
        broadcast = made.method.broadcast(advanced(made, made.method.init())).payload
        tasks += [Task(3 * number + client, broadcast) for client in range(3)]
    workers = Workers(several.as_one(), 2)
    try:
        assert list(workers.run(2, tasks)) == list(Sequential(several.as_one()).run(2, tasks))
    finally:
        workers.close()


@pytest.mark.parametrize("name", DENSE)
def test_a_client_that_diverged_is_left_out_with_the_reason(name: str, data: Dataset) -> None:
    made = experiment(data, {"algorithm": name, "local": {"epochs": 9, "lr": 1e38}})
    algorithm, start = made.method, made.method.init()
    with pytest.raises(WireError, match="training diverged"):
        algorithm.decode(start, 0, answers(made, start)[0].payload)


@pytest.mark.parametrize("name", ["fedpm", "fedmask", "hidenseek", "frl"])
def test_masks_of_a_client_whose_loss_is_no_number_are_left_out(name: str, data: Dataset) -> None:
    def lost(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.sum() * math.nan

    rounds: list[fedpm.Round] = []
    with pytest.raises(EngineError, match="diverged"), pytest.warns(UserWarning, match="learned nothing"):
        fedpm.run(small_config(rounds=1, algorithm=name), net=small_net(), data=data, loss=lost, on_round=rounds.append)
    assert rounds[0]["faults"] == {"diverged": len(rounds[0]["clients"])}
    assert all("training diverged" in reason for reason in rounds[0]["rejected"].values())


@pytest.mark.parametrize("name", DENSE)
def test_weights_of_a_dense_run_load_into_the_plain_network(name: str, data: Dataset, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = small_config(algorithm=name, rounds=1, local={"epochs": 1})
    result = fedpm.run(config, net=small_net(), data=data, out=tmp_path / "run")
    plain = small_net()
    plain.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    x = torch.from_numpy(data.test.x[:5])
    assert torch.equal(plain.eval()(x), result.model(x))


def test_settings_that_the_ends_must_share_are_checked(data: Dataset) -> None:
    for name, key, values in (
        ("qsgd", "levels", (0.25, 0.5)),
        ("eden", "bits", (1.0, 0.5)),
        ("fedmrn", "noise", (0.01, 0.02)),
    ):
        one, other = (experiment(data, {"algorithm": name, name: {key: value}}) for value in values)
        state = one.method.init()
        with pytest.raises(WireError, match=rf"{name}\.{key} = {values[1]:g} instead of {values[0]:g}"):
            one.method.decode(state, 0, answers(other, state)[0].payload)


def test_a_broadcast_of_another_seed_is_refused_by_dense_methods_too(data: Dataset) -> None:
    one, other = (experiment(data, {"algorithm": "fedavg", "seed": seed}) for seed in (0, 1))
    message = Message.from_bytes(other.method.broadcast(other.method.init()).payload)
    forged = replace(message, fingerprint=one.method.network.fingerprint(0)).to_bytes()
    with pytest.raises(WireError, match="broadcast of seed 1 instead of 0: of another run"):
        one.clients.run(1, Task(0, forged))


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
