import pickle
import warnings
from pathlib import Path

import pytest

from fedpm import config as configs
from fedpm.config import Config, changes_results, flattened, load, nested, parse, resolved, settings_of, to_toml
from fedpm.errors import ConfigError
from fedpm.registry import METHODS


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("clients.sampled=20", "clients.sampled = 20 should be at most clients.total = 10"),
        ("clients.rho=0.0", "clients.rho = 0.0: should be greater than 0"),
        ("clients.rho=1.5", "clients.rho = 1.5: should be at most 1"),
        ("local.lr=-0.1", "local.lr = -0.1: should be greater than 0"),
        ("rounds=0", "rounds = 0: should be greater than 0"),
        ("rounds=ten", "rounds = 'ten': should be a whole number"),
        ("rounds=2.5", "rounds = 2.5: should be a whole number"),
        ("seed=-1", "seed = -1: should be at least 0"),
        ("workers=0", "workers = 0 should be 'auto' or at least 1"),
        ("aggregation.reset_every=0", "aggregation.reset_every = 0 should be 'auto' or at least 1"),
        ("aggregation.lam0=0", "aggregation.lam0 = 0: should be greater than 0"),
        ("eden.bits=1.5", "eden.bits = 1.5 should be 2, or at most 1"),
        ("local.lr_decay=1.5", "local.lr_decay = 1.5: should be at most 1, or 'auto'"),
        ("dense.optimiser=lbfgs", "dense.optimiser = 'lbfgs': should be 'auto', 'sgd' or 'adam'"),
        ("algorithm=magic", "algorithm = 'magic': should be 'fedpm'"),
        ("nonsense=1", "nonsense = 1: unknown key"),
        ("local.epoch=1", "local.epoch = 1: unknown key; did you mean local.epochs?"),
        ("local.learning_rate=1", "local.learning_rate = 1: unknown key; did you mean local.lr?"),
        ("batch=8", "batch = 8: unknown key; did you mean local.batch_size?"),
        ("num_clients=8", "num_clients = 8: unknown key; did you mean clients.total?"),
        ("clients.n_clients=8", "clients.n_clients = 8: unknown key; did you mean clients.total?"),
        ("num_rounds=8", "num_rounds = 8: unknown key; did you mean rounds?"),
        ("epoch=8", "epoch = 8: unknown key; did you mean local.epochs?"),
        ("locals.epochs=1", "locals = {'epochs': 1}: unknown table; did you mean local?"),
        (
            "clients=5",
            'clients = 5: is a table, of keys and values: clients={"total": …} in Python, --set clients.total=…',
        ),
        ("data.name=mnits", "'folder' or 'own'; did you mean 'mnist'?"),
        ("data.name=wine.csv", "'own'; files of your own go in with data.name=folder, data.path=wine.csv"),
        ("keep=first", "keep = 'first': should be 'last' or 'best'"),
        ("tensorboard=perhaps", "tensorboard = 'perhaps': should be a truth value, true or false"),
        ("rounds.x=1", "rounds is a single value"),
        ("rounds", "--set rounds: should be KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("quickstart", [override])
    assert complaint in str(error.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        load("quickstart", ["clients.sampled=20", "nonsense=1", "local.lr=-1", "rounds=x"])
    assert len(str(error.value).splitlines()) == 4


def test_rho_and_sampled_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="give only one"):
        parse({"clients": {"rho": 0.5, "sampled": 3}})


@pytest.mark.parametrize(
    ("clients", "per_round"), [({}, 10), ({"sampled": 3}, 3), ({"rho": 0.5}, 5), ({"rho": 0.01}, 1)]
)
def test_clients_of_a_round(clients: dict[str, float], per_round: int) -> None:
    assert parse({"clients": clients}).clients.per_round == per_round


def test_toml_round_trip_is_complete(tmp_path: Path) -> None:
    config = load("quickstart", ["clients.sampled=3", "data.train_examples=500", "local.lr=0.05"])
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load(tmp_path / "c.toml") == config


def test_a_preset_in_the_place_of_a_file_is_told() -> None:
    with pytest.raises(ConfigError, match=r"the preset of that name is --preset quickstart$"):
        load(Path("quickstart"))


def test_every_preset_is_valid_and_described() -> None:
    assert "quickstart" in configs.presets()
    for name, description in configs.presets().items():
        assert isinstance(load(name), Config)
        assert description


def test_every_key_is_described() -> None:
    rows = configs.describe()
    assert ("seed", "0", "names every random stream of the run") in rows
    assert all(meaning for _, _, meaning in rows)


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        load(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="no such preset; did you mean quickstart"):
        load("quickstrat")


def test_fedmask_refuses_the_coder_of_samples() -> None:
    with pytest.raises(ConfigError, match="use 'frequency' or 'side-information'"):
        load("quickstart", ["algorithm=fedmask", "codec=shared-randomness"])


@pytest.mark.parametrize("name", METHODS.names())
def test_auto_is_the_tuned_value_and_what_is_set_stays(name: str) -> None:
    tuned = METHODS[name].tuned
    flat = flattened(resolved(load(None, [f"algorithm={name}"])).model_dump())
    assert all(flat[key] == (value(flat) if callable(value) else value) for key, value in tuned.items())
    given = {key: 0.5 for key, value in tuned.items() if isinstance(value, float)}
    config = resolved(load(None, {"algorithm": name, **given}))
    assert all(flattened(config.model_dump())[key] == 0.5 for key in given)
    assert resolved(config) == config


@pytest.mark.parametrize(
    ("effort", "lr", "codec", "forward"),
    [
        ("rounds", "auto", "shared-randomness", "expected"),
        ("bits", "auto", "relative-entropy", "expected"),
        ("paper", 0.1, "shared-randomness", "sampled"),
    ],
)
def test_effort_settles_rate_coder_and_forward(effort: str, lr: float | str, codec: str, forward: str) -> None:
    settled = resolved(load(None, [f"fedpm.effort={effort}"]))
    assert (settled.local.lr, settled.codec, settled.tables()["fedpm"].model_dump()["forward"]) == (lr, codec, forward)
    given = resolved(load(None, [f"fedpm.effort={effort}", "local.lr=0.3", "codec=frequency"]))
    assert (given.local.lr, given.codec) == (0.3, "frequency")


@pytest.mark.parametrize(
    ("settings", "epsilon"),
    [
        ([], 0),
        (["clients.sampled=5"], 1),
        (["clients.rho=0.5"], 1),
        (["clients.sampled=5", "local.adam_epsilon=0.5"], 0.5),
        (["clients.sampled=5", "fedpm.effort=bits"], 0),
        (["clients.sampled=5", "fedpm.effort=paper"], 0),
        (["clients.sampled=5", "model.weights=given", "model.name=minilm"], 0),
        (["clients.sampled=5", "algorithm=drive"], 0),
        (["clients.sampled=5", "privacy.unit=client", "privacy.epsilon=8"], 0),
    ],
)
def test_few_clients_of_a_round_hold_back_what_hardly_matters_to_them(settings: list[str], epsilon: float) -> None:
    assert resolved(load(None, ["clients.total=10", *settings])).local.adam_epsilon == epsilon


@pytest.mark.parametrize(
    ("settings", "beta1"),
    [
        ([], "auto"),
        (["fedpm.effort=bits"], "auto"),
        (["fedpm.effort=paper"], 0.9),
        (["local.adam_beta1=0.5"], 0.5),
        (["local.adam_epsilon=1"], 0.9),
        (["clients.sampled=5"], 0.9),
        (["clients.sampled=5", "local.adam_epsilon=0"], "auto"),
        (["model.weights=given", "model.name=minilm"], 0.9),
        (["algorithm=eden"], "auto"),
        (["algorithm=eden", "model.weights=given", "model.name=minilm"], 0.9),
        (["algorithm=fedmask"], 0.9),
        (["privacy.unit=example", "privacy.epsilon=8"], 0.9),
    ],
)
def test_beta1_is_a_rule_where_it_was_found_to_help(settings: list[str], beta1: float | str) -> None:
    assert resolved(load(None, ["clients.total=10", *settings])).local.adam_beta1 == beta1


@pytest.mark.parametrize(
    ("settings", "whiten"),
    [
        ([], True),
        (["clients.sampled=5"], True),
        (["fedpm.effort=bits"], False),
        (["fedpm.effort=paper"], False),
        (["fedpm.effort=bits", "local.whiten=true"], True),
        (["model.weights=given", "model.name=minilm"], False),
        (["algorithm=eden"], False),
        (["algorithm=eden", "local.whiten=true"], True),
        (["privacy.unit=client", "privacy.epsilon=8"], False),
    ],
)
def test_gradients_are_whitened_where_that_was_found_to_help(settings: list[str], whiten: bool) -> None:
    assert resolved(load(None, ["clients.total=10", *settings])).local.whiten is whiten


PRIVATE = ["privacy.unit=example", "privacy.epsilon=8"]


@pytest.mark.parametrize(("epochs", "rate", "steps"), [(1, 1.0, 1), (5, 1.0, 5), (10, 1.0, 10), (3, 0.1, 30)])
def test_noise_goes_as_far_in_a_round_however_many_steps_it_has(epochs: int, rate: float, steps: int) -> None:
    settled = resolved(load(None, [*PRIVATE, f"local.epochs={epochs}", f"privacy.sampling_rate={rate}"]))
    assert settled.local.lr == pytest.approx(1.2 / steps**0.5, abs=1e-4)
    assert resolved(load(None, [*PRIVATE, "local.lr=0.3"])).local.lr == 0.3


@pytest.mark.parametrize(
    ("settings", "forward"),
    [
        (PRIVATE, "expected"),
        ([*PRIVATE, "fedpm.effort=paper"], "sampled"),
        ([*PRIVATE, "fedpm.forward=sampled"], "sampled"),
        (["privacy.unit=client", "privacy.epsilon=8"], "sampled"),
    ],
)
def test_private_steps_see_expected_weights_unless_they_are_the_papers(settings: list[str], forward: str) -> None:
    assert resolved(load(None, settings)).tables()["fedpm"].model_dump()["forward"] == forward


def test_a_file_that_holds_what_auto_came_to_is_told_when_it_would_come_to_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(resolved(load({"fedpm.effort": "rounds"}))))
    words = (
        r"^local\.lr_fade = 5\.0, local\.whiten = True, codec = 'shared-randomness': what auto had come to, and with "
        r"fedpm\.effort = 'bits' it would come to something else; --set local\.lr_fade=auto "
        r"--set local\.whiten=auto --set codec=auto lets it$"
    )
    with pytest.warns(UserWarning, match=words) as said:
        mixed = load(tmp_path / "config.toml", ["fedpm.effort=bits"])
    assert mixed.codec == "shared-randomness", "it is told, and not changed"
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(mixed, {"fedpm.effort": "bits", "rounds": 3})
        load(tmp_path / "config.toml", ["rounds=3", "local.epochs=7"])
        load(tmp_path / "config.toml", ["fedpm.effort=bits", "codec=auto", "local.lr_fade=0", "local.whiten=auto"])
        load("quickstart", ["fedpm.effort=rounds"])


def test_whether_a_key_changes_results_is_said_at_the_key() -> None:
    harmless = (
        "workers",
        "decoders",
        "engine",
        "tensorboard",
        "mlflow",
        "wandb",
        "data.dir",
        "data.path",
        "data.test",
        "data.label",
        "data.client",
        "flower.deadline",
    )
    assert not any(map(changes_results, harmless))
    assert all(map(changes_results, ("seed", "local.lr", "eden.bits", "device", "a.key.of.another.release")))
    config = load(None, ["workers=3", "engine=flower", "tensorboard=true", "data.dir=somewhere"])
    kept, all_ = (flattened(settings_of(config, results_only=only)) for only in (True, False))
    assert set(all_) - set(kept) == {"workers", "decoders", "engine", "tensorboard", "mlflow", "wandb", "data.dir"} | {
        f"flower.{key}" for key in ("quorum", "deadline", "patience")
    }


def test_flat_and_nested_settings_are_the_same() -> None:
    tables = {"rounds": 3, "local": {"lr": 0.1, "epochs": 2}, "a": {"b": {"c": 1}}}
    assert flattened(tables) == {"rounds": 3, "local.lr": 0.1, "local.epochs": 2, "a.b.c": 1}
    assert nested(flattened(tables)) == tables
    assert nested({"local.lr": 0.2}, tables)["local"] == {"lr": 0.2, "epochs": 2}
    assert tables["local"] == {"lr": 0.1, "epochs": 2}, "what was given is left alone"


def test_a_configuration_can_move_to_another_process() -> None:
    config = load(None, ["algorithm=eden", "eden.bits=0.5"])
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301


def test_a_million_clients_are_no_fault_of_any_algorithm() -> None:
    for name in METHODS.names():
        assert load(None, [f"algorithm={name}", "clients.total=1000000", "clients.sampled=100"])


def test_written_settings_hold_what_concerns_the_algorithm() -> None:
    masks, eden = (settings_of(load(None, [f"algorithm={name}"])) for name in ("fedpm", "eden"))
    assert not {"dense", "eden", "qsgd"} & set(masks)
    assert {"dense", "eden"} <= set(eden)
    assert not {"codec", "aggregation", "qsgd"} & set(eden)


@pytest.mark.parametrize("preset", list(configs.presets()))
def test_every_preset_leaves_the_rate_to_the_algorithm(preset: str) -> None:
    for spec in METHODS:
        lr = resolved(load(preset, [f"algorithm={spec.name}"])).local.lr
        assert lr == spec.tuned["local.lr"] or callable(spec.tuned["local.lr"])  # by a rule
