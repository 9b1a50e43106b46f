"""The algorithms by name, each built from its settings."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedpm.config import Config
from fedpm.methods.base import Algorithm
from fedpm.methods.dense.deltas import Deltas, Quantiser
from fedpm.methods.dense.drive import RotatedSigns
from fedpm.methods.dense.eden import GaussianLevels
from fedpm.methods.dense.fedavg import Float32
from fedpm.methods.dense.qsgd import Levels
from fedpm.methods.dense.signsgd import Signs
from fedpm.methods.dense.terngrad import Ternary
from fedpm.methods.mask.fedmask import FedMask
from fedpm.methods.mask.fedpm import FedPM
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.budget import private_of
from fedpm.training.local import Local
from fedpm.wire.coders.relative_entropy import RelativeEntropy

Built = Algorithm[Any, Any]


def build_algorithm(config: Config, masked: MaskedNetwork, local: Local) -> Built:
    """Return the algorithm of a configuration in which nothing is ``auto``."""
    return _BUILDERS[config.algorithm](config, masked, local)


def _fedpm(config: Config, masked: MaskedNetwork, local: Local) -> Built:
    relative = RelativeEntropy(config.relative_entropy.index_bits, config.relative_entropy.budget)
    return FedPM(
        masked,
        config.seed,
        local,
        config.codec,
        config.aggregation.lam0,
        config.reset_every,
        relay=config.aggregation.relay,
        relative=relative,
        private=private_of(config),
    )


def _fedmask(config: Config, masked: MaskedNetwork, local: Local) -> Built:
    return FedMask(masked, config.seed, local, config.codec, config.fedmask.clamp)


def _dense(
    quantiser: Callable[[Config], Quantiser], direction: Callable[[Config], Any] = lambda config: np.asarray
) -> Callable[[Config, MaskedNetwork, Local], Built]:
    """Return the builder of a dense method with this quantiser and this direction of the server's step."""

    def build(config: Config, masked: MaskedNetwork, local: Local) -> Built:
        dense = config.dense
        return Deltas(
            masked,
            config.seed,
            replace(local, optimiser=dense.optimiser),
            quantiser(config),
            float(dense.server_lr),
            float(dense.lr_decay),
            float(dense.server_decay),
            dense.broadcast,
            direction(config),
        )

    return build


_BUILDERS: dict[str, Callable[[Config, MaskedNetwork, Local], Built]] = {
    "fedpm": _fedpm,
    "fedmask": _fedmask,
    "fedavg": _dense(lambda config: Float32()),
    "signsgd": _dense(lambda config: Signs(), lambda config: np.sign if config.signsgd.vote else np.asarray),
    "terngrad": _dense(lambda config: Ternary(config.terngrad.clip)),
    "qsgd": _dense(lambda config: Levels(config.qsgd.levels)),
    "drive": _dense(lambda config: RotatedSigns()),
    "eden": _dense(lambda config: GaussianLevels(config.eden.bits)),
}
