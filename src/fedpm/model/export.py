"""A trained model in other people's formats."""

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from fedpm.errors import ArtifactError, ConfigError, install
from fedpm.files import write_atomically

TOLERANCE = 1e-4
"""How far ONNX Runtime's output may be from PyTorch's, relative to its largest value."""


def to_onnx(
    module: nn.Module,
    input_shape: tuple[int, ...],
    input_dtype: str,
    path: Path,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> float:
    """Write an ONNX file for batches of any size, check it on ONNX Runtime, and return the largest difference seen."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"ONNX export needs {error.name or error}: {install('onnx')}") from None
    examples = _examples(input_shape, input_dtype)
    data = _exported(module, examples, metadata)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    difference = 0.0
    for batch in (examples, examples[:1]):
        with torch.inference_mode():
            expected = module(batch).numpy()
        (found,) = session.run(None, {"input": batch.numpy()})
        difference = max(difference, float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
    if not difference <= TOLERANCE:
        raise ArtifactError(f"ONNX Runtime's output differs from PyTorch's by {difference:.2g}: nothing was written")
    write_atomically(path, data)
    return difference


def _examples(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return inputs that exercise the network: values in [−1, 1], or 1 and 0 in turn, which may be padding."""
    count = 3 * int(np.prod(shape))
    values = torch.linspace(-1, 1, count).sin() if dtype == "float32" else (torch.arange(count) + 1) % 2
    return values.reshape(3, *shape)


def _exported(module: nn.Module, examples: torch.Tensor, metadata: Mapping[str, str]) -> bytes:
    """Return ONNX bytes; torch's exporter is talkative, so what it says is shown only when it fails."""
    for talkative in ("onnxscript", "torch.onnx"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                (examples,),
                dynamo=True,
                input_names=["input"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except Exception as error:  # whatever an operator without an ONNX form raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else said.getvalue()[-200:]
        raise ArtifactError(f"torch cannot export this network to ONNX: {reason}") from error
    if program is None:
        raise ArtifactError(f"torch exported nothing: {said.getvalue()[-200:]}")
    model = program.model_proto
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString())
