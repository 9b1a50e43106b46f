"""The round loop, which exists here and nowhere else."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedpm.data.partition import histogram
from fedpm.engines.base import Engine
from fedpm.errors import ConfigError, EngineError
from fedpm.experiment.build import Experiment
from fedpm.experiment.decoding import Decoders, start_decoders
from fedpm.experiment.folder import RunFolder
from fedpm.experiment.loggers import About, open_logger
from fedpm.experiment.observers import Callback, Observer, Round
from fedpm.experiment.progress import announced, round_progress
from fedpm.experiment.record import RoundRecord, best_round, diverged, in_rounds, rounds_without_gain, useless
from fedpm.experiment.result import Result, finish, model_file
from fedpm.experiment.round import run_round
from fedpm.experiment.statistics import kinds_table
from fedpm.methods.base import Arrays
from fedpm.privacy.budget import Ledger

_CLIENTS = 1000  # whose classes are written down, at most
_REMEDY = "lower local.lr, or look at the loss and the data"
_BEST = "best/"  # before the names of a checkpoint's arrays that are of the best round


class Run:
    """A run as far as it has come: the last state, the one whose model is shipped, a record a round, ε spent."""

    def __init__(self, experiment: Experiment, folder: RunFolder | None) -> None:
        self.experiment, self.folder = experiment, folder
        self.origin = experiment.origin()
        self.decoders: Decoders | None = None
        arrays, self.records = folder.load_state(self.origin) if folder else (None, [])
        self.state, self.kept = self._states(arrays)
        if self.state.round > experiment.rounds:
            done = self.state.round
            raise ConfigError(f"rounds = {experiment.rounds}: this run has done {done} already; give at least {done}")
        self.ledger = Ledger(experiment.guarantee, (record["clients"] for record in self.records))

    def ended(self) -> str | None:
        """Return why training has ended, None if it goes on."""
        if self.state.round >= self.experiment.rounds:
            return "rounds"
        patience = self.experiment.patience
        if patience and rounds_without_gain(self.records) >= patience:
            return "patience"
        return None if self.ledger.affords(self.experiment.participation.of(self.state.round + 1)) else "budget"

    def advance(self, engine: Engine) -> RoundRecord:
        """Do a round; it is safe on disk when this returns."""
        self.state, record = run_round(self.experiment, engine, self.state, self.decoders)
        spent = self.ledger.charge(record["clients"])
        if spent is not None:
            record["epsilon"] = spent
        self.records.append(record)
        if self.shipped is record:
            self.kept = self.state
        if self.folder is not None:
            self.folder.append(record)
            self.folder.save_state(self._arrays(), replace(self.origin, round=self.state.round))
        return record

    @property
    def shipped(self) -> RoundRecord:
        """The record of the round whose model is shipped."""
        return best_round(self.records) if self.experiment.keep == "best" else self.records[-1]

    def result(self, ended: str) -> Result:
        """Make the model and sum the run up, in the folder too; what learned nothing at all is no result."""
        self._check_learned()
        privacy = self.ledger.statement()
        result = finish(self.experiment, self.kept, self.records, shipped=self.shipped, ended=ended, privacy=privacy)
        if self.folder is not None:
            self.folder.finish(result.summary, result.file.name, result.file.to_bytes())
        return result

    def _check_learned(self) -> None:
        """Refuse a run in which no upload could ever be used because training diverged: its network is untrained."""
        if all(map(useless, self.records)) and any(map(diverged, self.records)):
            kept = f"; {self.folder.path / 'rounds.jsonl'} says why of each client" if self.folder else ""
            raise EngineError(
                f"no upload of {in_rounds(len(self.records))} could be used, for the training of all clients diverged, "
                f"so that nothing was learned: {_REMEDY}{kept}"
            )

    def save_model(self) -> None:
        """Leave the model in the folder as it is now, for a run that breaks off."""
        if self.folder is not None:
            file = model_file(self.experiment, self.kept, self.shipped, self.ledger.statement())
            self.folder.write_model(file.name, file.to_bytes())

    def _arrays(self) -> Arrays:
        """Return the state for a checkpoint, and beside it the one whose model is shipped if that is another."""
        method = self.experiment.method
        best = {} if self.kept is self.state else method.to_arrays(self.kept)
        return method.to_arrays(self.state) | {_BEST + name: array for name, array in best.items()}

    def _states(self, arrays: Arrays | None) -> tuple[Any, Any]:
        """Return the states of a checkpoint, or those before the first round."""
        method, folder = self.experiment.method, self.folder
        if folder is None or arrays is None:
            return (state := method.init()), state
        best = {name.removeprefix(_BEST): array for name, array in arrays.items() if name.startswith(_BEST)}
        try:
            state = method.from_arrays({name: array for name, array in arrays.items() if not name.startswith(_BEST)})
            return state, method.from_arrays(best) if best else state
        except (KeyError, ValueError):
            raise folder.wrong_state() from None


def train(
    experiment: Experiment,
    folder: RunFolder | None,
    *,
    on_round: Callback,
    progress: bool | None,
    start: Callable[[Experiment], Engine],
) -> Result:
    """Run the rounds that are left, and return the result."""
    run = Run(experiment, folder)
    if folder is not None:
        folder.write_config(experiment.config_toml)
        _write_classes(folder, experiment)
    return run.result(run.ended() or _train_on(run, on_round, progress, start))  # a finished run starts nothing


def _train_on(run: Run, on_round: Callback, progress: bool | None, start: Callable[[Experiment], Engine]) -> str:
    """Do rounds until training ends, and return why it did."""
    with ExitStack() as started:
        shown = round_progress(run.experiment.rounds, done=run.state.round, wanted=progress, about=_about(run))
        observers = [started.enter_context(observer) for observer in (*_loggers(run), shown)]
        engine = started.enter_context(closing(start(run.experiment)))
        if run.experiment.engine == "inprocess":  # of others nobody knows how many clients train side by side
            engine = announced(engine, run.experiment.start.workers, progress)
        run.decoders = start_decoders(run.experiment)
        if run.decoders is not None:
            started.enter_context(closing(run.decoders))
        if run.folder is not None:
            run.folder.reopen()
        while (ended := run.ended()) is None:
            record = run.advance(engine)
            _warn(run)
            for observer in observers:
                observer(record)
            if _called(run, record, on_round).stopped:
                return "callback"
    return ended


def _warn(run: Run) -> None:
    """Warn of a round that learned nothing because training diverged, once where several are so in a row."""
    *before, last = run.records
    if diverged(last) and not (before and diverged(before[-1])):
        sentence = f"round {last['round']} learned nothing, for the training of all its clients diverged: {_REMEDY}"
        warnings.warn(sentence, UserWarning, stacklevel=5)  # of who called fedpm.run


def _about(run: Run) -> str:
    """Return what is said before the first round: which parameters are of which kind."""
    method, own = run.experiment.method, run.experiment.network_name is None
    masks = method.mask(run.state, method.modes[0]) is not None
    return "" if run.records else kinds_table(method.network, masks=masks, own=own)


def _called(run: Run, record: RoundRecord, on_round: Callback) -> Round:
    """Tell the caller of a round; where that raises, the folder gets the model before all else ends."""
    handle = Round(record, partial(run.experiment.method.module, run.state, record["mode"]))
    try:
        on_round(handle)
    except BaseException:
        with suppress(OSError):  # what was raised is what the caller should see
            run.save_model()
        raise
    return handle


def _loggers(run: Run) -> list[AbstractContextManager[Observer]]:
    """Return the programs that are told of each round."""
    names = run.experiment.loggers
    if not names:
        return []
    if run.folder is None:
        raise ConfigError(f"{names[0]} = true writes into the run folder: give one, out=…")
    layers = [part.name for part in run.experiment.method.network.parts]
    about = About(run.folder.path, run.state.round, layers, run.origin.settings)
    return [open_logger(name, about) for name in names]


def _write_classes(folder: RunFolder, experiment: Experiment) -> None:
    """Write how many examples of each class each client holds, unless only the clients themselves know."""
    clients = experiment.clients
    if clients.load is not None or sum(map(len, clients.parts)) > len(clients.train):
        return  # nothing is here yet; or the data of one place, which stand for those of every client
    classes: tuple[str, ...] = experiment.dataset.classes
    counts = np.array([[len(part)] for part in clients.parts[:_CLIENTS]])
    if experiment.dataset.labelled:
        counts = histogram(clients.train.y, list(clients.parts[:_CLIENTS]), len(classes))
    else:
        classes = ("examples",)
    content: dict[str, Any] = {"classes": list(classes), "clients": len(clients.parts), "counts": counts.tolist()}
    if clients.names:
        content["names"] = list(clients.names[:_CLIENTS])
    folder.write_json("clients.json", content)
