"""``fedpm model``: what is in a model file, how good it is, and other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpm.errors import ConfigError

if TYPE_CHECKING:
    from fedpm.model.file import Model

app = typer.Typer(help="Look into a model file, evaluate it, export it.", no_args_is_help=True)
console = Console()
File = Annotated[Path, typer.Argument(metavar="FILE", help="A model file, such as runs/try/model.fedpm.")]


@app.command()
def inspect(file: File) -> None:
    """Show what a model is, how large, how sparse in each layer, and where it came from."""
    from fedpm.model.file import Model

    model = Model.open(file)
    header = model.header
    size = len(model.to_bytes())
    about = {
        "network": f"{header.network or 'your own'}, {header.parameters:,} parameters, seed {header.seed}",
        "size": f"{size:,} bytes, {8 * size / header.parameters:.4f} bits per parameter, "
        f"{4 * header.parameters / size:.1f}× smaller than 32-bit weights",
        "input": f"{' × '.join(map(str, header.input_shape))} {header.input_dtype}"
        + (f", {header.preprocessing}" if header.preprocessing else ""),
        "classes": f"{len(header.classes)}: {', '.join(header.classes[:12])}{' …' if len(header.classes) > 12 else ''}",
        **{key: _short(value) for key, value in header.provenance.items() if key != "config"},
    }
    for key, value in about.items():
        console.print(f"[bold]{escape(key)}[/bold]: {escape(str(value))}", highlight=False)
    if header.network is None:
        console.print("sparsity: load it in Python, Model.open(file).masked(net=YourNetwork())", highlight=False)
        return
    console.print(_sparsity(model))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _sparsity(model: Model) -> Table:
    """Return a table with the share of kept weights in each layer as a bar."""
    masked = model.masked()
    mask = model.mask(masked)
    table = Table("layer", "shape", "kept", "", box=None)
    start = 0
    for part in masked.parts:
        kept = float(mask[start : start + part.size].mean())
        start += part.size
        bar = "█" * round(30 * kept) + "░" * (30 - round(30 * kept))
        table.add_row(part.name, "×".join(map(str, part.shape)), f"{kept:.1%}", bar)
    table.add_row("all", f"{masked.size:,}", f"{float(mask.mean()):.1%}", "")
    return table


@app.command("eval")
def evaluate_model(
    file: File,
    data: Annotated[str | None, typer.Option(help="Data set (default: the one it was trained on).")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds data sets.")] = None,
    packed: Annotated[bool, typer.Option("--packed", help="Compute with 2-bit weights in memory.")] = False,
) -> None:
    """Evaluate on the test part of a data set."""
    import torch

    from fedpm.data.datasets import load_dataset
    from fedpm.model.file import Model
    from fedpm.training.evaluation import evaluate

    model = Model.open(file)
    trained_on = model.header.provenance.get("config", {}).get("data", {}).get("name", "")
    dataset = load_dataset(data or trained_on, data_dir)
    if dataset.input_shape != model.header.input_shape or len(dataset.classes) > len(model.header.classes):
        raise ConfigError(
            f"{dataset.name} has inputs of shape {dataset.input_shape} and {len(dataset.classes)} classes; the model "
            f"takes {model.header.input_shape} and has {len(model.header.classes)}: choose data that fit"
        )
    score = evaluate(model.module(packed=packed), dataset.test, torch.device("cpu"))
    console.print(
        f"accuracy {score.accuracy:.4f}  loss {score.loss:.4f}  on the test part of {escape(dataset.name)}",
        highlight=False,
    )


@app.command()
def export(
    file: File,
    onnx: Annotated[Path | None, typer.Option(metavar="OUT", help="Write ONNX, checked on ONNX Runtime.")] = None,
    torch: Annotated[Path | None, typer.Option(metavar="OUT", help="Write float32 weights as .safetensors.")] = None,
) -> None:
    """Write the model in another format."""
    if (onnx is None) == (torch is None):
        raise ConfigError("fedpm model export: give one of --onnx OUT and --torch OUT")
    from fedpm.model.export import Weights, to_onnx
    from fedpm.model.file import Model

    model = Model.open(file)
    if onnx is not None:
        difference = to_onnx(model.module(), model.header.input_shape, model.header.input_dtype, onnx)
        console.print(f"wrote {onnx}; ONNX Runtime agrees with PyTorch to {difference:.1e}", highlight=False)
    if torch is not None:
        Weights(model.module()).save(torch)
        console.print(f"wrote {torch}", highlight=False)
