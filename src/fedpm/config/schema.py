"""A complete experiment as settings: the tables of this package, and those of every registered part."""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from fedpm import registry
from fedpm.config.privacy import PrivacyConfig, refusals
from fedpm.config.sections import (
    ClientsConfig,
    DataConfig,
    EvaluationConfig,
    LocalConfig,
    ModelConfig,
    StopConfig,
    TaskConfig,
)
from fedpm.registry import AGGREGATORS, CODERS, ENGINES, METHODS, Registry, Settings, Spec, setting

LENGTH = {"rounds", "stop.patience"}
"""Keys that say how long a run is, and may be others when it is resumed."""


def _known(parts: Registry[Any]) -> AfterValidator:
    """Return a check that a part of this name is registered."""

    def check(name: str) -> str:
        if name != "auto" and name not in parts:
            raise PydanticCustomError("part", "{wanted}", {"wanted": parts.wanted(name)})
        return name

    return AfterValidator(check)


class Config(Settings):
    """A complete experiment; what ``config_class`` gives also has a field for the table of each part."""

    seed: int = setting(0, "names every random stream of the run", ge=0, lt=2**63)
    rounds: int = setting(
        20, "rounds of training: the server sends, clients train and answer, the server counts", gt=0, lt=2**31
    )
    algorithm: Annotated[str, _known(METHODS)] = setting("fedpm", "what clients and server do")
    codec: Annotated[str, _known(CODERS)] = setting(
        "auto", "how masks are coded on the way up; auto: as it suits the algorithm"
    )
    aggregator: Annotated[str, _known(AGGREGATORS)] = setting(
        "auto", "how the updates of a round become one; auto: as it suits the algorithm"
    )
    engine: Annotated[str, _known(ENGINES)] = setting("inprocess", "what runs the clients", changes_results=False)
    workers: Literal["auto"] | int = setting(
        "auto",
        "processes that train clients, never changes results; auto: as many as make it faster",
        changes_results=False,
    )
    decoders: int = setting(
        1,
        "processes in which the server decodes uploads; 1: its own; never changes results",
        ge=1,
        changes_results=False,
    )
    subtotals: bool = setting(
        False, "let these processes add up what they decode and hand on sums: for rules that need no single mask"
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of training; auto: bfloat16 where the hardware computes in it"
    )
    keep: Literal["last", "best"] = setting(
        "last", "the round whose model is shipped: the last, or the best on validation data"
    )
    average: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = setting(
        "auto",
        "score and ship the mean over about this share of the rounds so far, which has less noise; clients go on from "
        "the last round; 0: the last round alone (docs/start.md); auto: as tuned for the algorithm",
    )
    tensorboard: bool = setting(False, "also write TensorBoard events into the run folder", changes_results=False)
    mlflow: bool = setting(False, "also tell MLflow of each round (docs/control.md)", changes_results=False)
    wandb: bool = setting(False, "also tell Weights & Biases of each round (docs/control.md)", changes_results=False)
    data: DataConfig = DataConfig()
    clients: ClientsConfig = ClientsConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    local: LocalConfig = LocalConfig()
    stop: StopConfig = StopConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    privacy: PrivacyConfig = PrivacyConfig()

    @model_validator(mode="after")
    def _workers(self) -> Self:
        if isinstance(self.workers, int) and self.workers < 1:
            raise ValueError(f"workers = {self.workers} should be 'auto' or at least 1")
        return self

    @model_validator(mode="after")
    def _codec(self) -> Self:
        method = METHODS[self.algorithm]
        if self.codec == "auto" or not method.masks or method.sampled or CODERS[self.codec].threshold_form is not None:
            return self
        able = " or ".join(repr(spec.name) for spec in CODERS if spec.threshold_form is not None)
        raise ValueError(
            f"codec = {self.codec!r} codes samples, and the masks of algorithm = {self.algorithm!r} are none: "
            f"use {able}"
        )

    @model_validator(mode="after")
    def _relay(self) -> Self:
        secure = self.codec != "auto" and CODERS[self.codec].secure
        if secure and any(getattr(table, "relay", None) is True for table in self.tables().values()):
            raise ValueError(
                f"aggregation.relay = true passes single uploads on, and with codec = {self.codec!r} nobody has any: "
                "use 'auto' or false"
            )
        return self

    @model_validator(mode="after")
    def _average(self) -> Self:
        if self.average in ("auto", 0):
            return self
        if "average" not in METHODS[self.algorithm].tuned:
            able = ", ".join(repr(spec.name) for spec in METHODS if "average" in spec.tuned)
            raise ValueError(
                f"average = {self.average}: algorithm = {self.algorithm!r} ships the last round alone; use 0, or one "
                f"of {able}"
            )
        if self.evaluation.at == "clients":
            raise ValueError(
                f"average = {self.average}: with evaluation.at = 'clients' networks are scored by clients, who know "
                "the last round alone; use 0, or evaluation.at = 'server'"
            )
        return self

    @model_validator(mode="after")
    def _privacy(self) -> Self:
        if faults := refusals(self):
            raise ValueError("\n".join(faults))
        return self

    def table(self, name: str) -> Settings:
        """Return the table of a part."""
        table: Settings = getattr(self, name)
        return table

    def parts(self) -> list[Spec]:
        """Return the parts that this experiment is made of."""
        method = METHODS[self.algorithm]
        coders = [CODERS[self.codec]] if method.masks and self.codec != "auto" else []
        rules = [AGGREGATORS[self.aggregator]] if self.aggregator != "auto" else []
        return [method, *coders, *rules, ENGINES[self.engine]]

    def tables(self) -> dict[str, Settings]:
        """Return the tables of the parts that this experiment is made of, by name."""
        return {name: self.table(name) for spec in self.parts() for name in spec.tables}

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as settings: the class is made anew there, and parts of your own are imported."""
        modules = {spec.build.__module__ for spec in self.parts()} - {"__main__"}
        return _rebuilt, (self.model_dump(include={*Config.model_fields, *self.tables()}), sorted(modules))


def config_class() -> type[Config]:
    """Return the class of configurations, with the tables of all parts that are registered now."""
    return _config_class(tuple(registry.tables().items()))


@lru_cache(maxsize=4)
def _config_class(tables: tuple[tuple[str, type[Settings]], ...]) -> type[Config]:
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in tables}
    return create_model("Config", __base__=Config, **fields)


def _rebuilt(settings: dict[str, Any], modules: list[str]) -> Config:
    for module in modules:
        import_module(module)
    return config_class().model_validate(settings)


def keys() -> dict[str, FieldInfo]:
    """Return every key with its field, keys of tables with the table's name before a dot."""
    found: dict[str, FieldInfo] = {}
    for name, field in config_class().model_fields.items():
        if isinstance(field.default, Settings):
            table = type(field.default).model_fields
            found |= {f"{name}.{key}": inner for key, inner in table.items()}
        else:
            found[name] = field
    return found


def changes_results(key: str, known: Mapping[str, FieldInfo] | None = None) -> bool:
    """Return whether a result depends on a key; one not ``known`` may be of a part that is not here, and does."""
    field = (keys() if known is None else known).get(key)
    extra = field.json_schema_extra if field else None
    return bool(extra.get("changes_results", True)) if isinstance(extra, dict) else True
