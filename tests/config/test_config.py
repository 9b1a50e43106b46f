from pathlib import Path

import pytest

from fedpm import config as configs
from fedpm.config import Config, load, parse, settings_of, to_toml
from fedpm.config.tuned import TUNED, resolved
from fedpm.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("clients.sampled=20", "clients.sampled = 20 should be at most clients.total = 10"),
        ("clients.rho=0.0", "clients.rho = 0.0: should be greater than 0"),
        ("clients.rho=1.5", "clients.rho = 1.5: should be less than or equal to 1"),
        ("local.lr=-0.1", "local.lr = -0.1: should be greater than 0"),
        ("rounds=0", "rounds = 0: should be greater than 0"),
        ("rounds=ten", "rounds = 'ten': should be a valid integer"),
        ("rounds=2.5", "rounds = 2.5: should be a valid integer"),
        ("seed=-1", "seed = -1: should be greater than or equal to 0"),
        ("workers=0", "workers = 0 should be 'auto' or at least 1"),
        ("aggregation.reset_every=0", "aggregation.reset_every = 0 should be 'auto' or at least 1"),
        ("aggregation.lam0=0", "aggregation.lam0 = 0: should be greater than 0"),
        ("eden.bits=1.5", "eden.bits = 1.5 should be 2, or at most 1"),
        ("dense.lr_decay=1.5", "dense.lr_decay = 1.5: should be less than or equal to 1, or should be 'auto'"),
        ("dense.optimiser=lbfgs", "dense.optimiser = 'lbfgs': should be 'auto', 'sgd' or 'adam'"),
        ("algorithm=magic", "algorithm = 'magic': should be 'fedpm'"),
        ("nonsense=1", "nonsense = 1: unknown key"),
        ("local.epoch=1", "local.epoch = 1: unknown key; did you mean local.epochs?"),
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


@pytest.mark.parametrize(("rho", "gamma"), [(1.0, 1), (0.5, 2), (0.2, 5), (0.1, 10)])
def test_auto_reset_is_one_over_rho(rho: float, gamma: int) -> None:
    assert parse({"clients": {"rho": rho}}).reset_every == gamma


def test_toml_round_trip_is_complete(tmp_path: Path) -> None:
    config = load("quickstart", ["clients.sampled=3", "data.train_examples=500", "local.lr=0.05"])
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load(tmp_path / "c.toml") == config


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
    with pytest.raises(ConfigError, match="cannot read this file"):
        load(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"no such preset; there are: .*quickstart"):
        load("quickstrat")


def test_fedmask_refuses_the_coder_of_samples() -> None:
    with pytest.raises(ConfigError, match="use 'side-information' or 'frequency'"):
        load("quickstart", ["algorithm=fedmask", "codec=shared-randomness"])


@pytest.mark.parametrize("name", sorted(TUNED))
def test_auto_is_the_tuned_value_and_what_is_set_stays(name: str) -> None:
    config = resolved(load(None, [f"algorithm={name}"]))
    assert config.local.lr == TUNED[name].lr
    assert config.dense.server_lr == TUNED[name].server_lr
    assert "auto" not in [config.codec, *config.dense.model_dump().values()]
    given = resolved(load(None, [f"algorithm={name}", "local.lr=0.5", "dense.server_lr=2"]))
    assert (given.local.lr, given.dense.server_lr) == (0.5, 2.0)
    assert resolved(given) == given


def test_written_settings_hold_what_concerns_the_algorithm() -> None:
    masks, eden = (settings_of(load(None, [f"algorithm={name}"])) for name in ("fedpm", "eden"))
    assert not {"dense", "eden", "qsgd"} & set(masks)
    assert {"dense", "eden"} <= set(eden)
    assert not {"codec", "aggregation", "qsgd"} & set(eden)


@pytest.mark.parametrize("preset", list(configs.presets()))
@pytest.mark.parametrize("name", list(TUNED))
def test_every_preset_leaves_the_rate_to_the_algorithm(preset: str, name: str) -> None:
    assert resolved(load(preset, [f"algorithm={name}"])).local.lr == TUNED[name].lr
