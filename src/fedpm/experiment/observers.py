"""Who else is told of each round: TensorBoard, with the extra ``tensorboard`` and the setting of that name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpm.errors import ConfigError
from fedpm.experiment.record import RoundRecord

_SCALARS = ("accuracy", "loss", "train_loss", "uplink_bpp", "downlink_bpp", "uplink_bytes", "downlink_bytes", "seconds")


Observer = Callable[[RoundRecord], None]
"""What is called with the record of each round as it ends."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of a run; rounds that are done again replace those before."""

    def __init__(self, folder: Path, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("tensorboard = true needs one more package: pip install 'fedpm[tensorboard]'") from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def __call__(self, record: RoundRecord) -> None:
        """Write a round's scalars, the histogram of θ, and the mean of θ in each layer."""
        number, write = record["round"], self._writer.add_scalar
        for name in _SCALARS:
            if (value := record.get(name)) is not None:
                write(name, value, number)
        for mode, value in record["validation_accuracy"].items():
            write(f"validation_accuracy/{mode}", value, number)
        for layer, value in enumerate(record.get("theta_layers", [])):
            write(f"theta/layer{layer}", value, number)
        if "theta_histogram" in record:
            self._histogram(np.array(record["theta_histogram"]), number)
        self._writer.flush()

    def _histogram(self, counts: Any, number: int) -> None:
        middles = np.linspace(0, 1, len(counts))
        self._writer.add_histogram_raw(
            "theta",
            min=0.0,
            max=1.0,
            num=int(counts.sum()),
            sum=float((counts * middles).sum()),
            sum_squares=float((counts * middles**2).sum()),
            bucket_limits=(middles + middles[1] / 2).tolist(),
            bucket_counts=counts.tolist(),
            global_step=number,
        )
