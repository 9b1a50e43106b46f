"""``fedpm model``: what is in a model file, how good it is, and other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpm.cli.options import Client, Label, find_beside
from fedpm.cli.parsing import Group
from fedpm.errors import ConfigError, printable

if TYPE_CHECKING:
    from torch import nn

    from fedpm.model.file import Model
    from fedpm.model.masking import MaskedNetwork
    from fedpm.model.weights import Weights

app = typer.Typer(cls=Group, help="Look into a model, evaluate it, export it.", no_args_is_help=True)
console = Console()
Net = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="What makes your own network, if the model is of one."),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A run folder, or a file: model.fedpm, model.safetensors.")]


@app.command()
def inspect(file: File, net: Net = None) -> None:
    """Show what a model is, how large, how sparse in each layer, and where it came from."""
    from fedpm.model.file import Model
    from fedpm.model.weights import open_model

    model = open_model(file)
    header = model.header
    size, seed = len(model.to_bytes()), f", seed {model.header.seed}" if isinstance(model, Model) else ""
    ratio = 4 * header.parameters / size
    about = {
        "network": f"{header.network or 'your own'}, {header.parameters:,} parameters{seed}",
        "size": f"{size:,} bytes, {8 * size / header.parameters:.4f} bits per parameter"
        + (f", {ratio:.1f}× smaller than 32-bit weights" if ratio > 1 else ""),
        "input": f"{' × '.join(map(str, header.input_shape))} {header.input_dtype}"
        + (f", {header.preprocessing}" if header.preprocessing else ""),
        "classes": f"{len(header.classes)}: {', '.join(header.classes[:12])}{' …' if len(header.classes) > 12 else ''}",
        **{key: _short(value) for key, value in header.provenance.items() if key != "config"},
    }
    shares = None
    if isinstance(model, Model) and (header.network or net):  # first: nothing is shown of what cannot be
        shares = _sparsity(model, model.masked(_network(net, model)))
    for key, value in about.items():
        console.print(f"[bold]{escape(printable(key))}[/bold]: {escape(printable(str(value)))}", highlight=False)
    if not isinstance(model, Model):
        shares = _layers(model)
    console.print(shares or "sparsity: say what makes your network with --net MODULE:FUNCTION", highlight=False)


def _layers(model: Weights) -> Table:
    """Return a table with the shape of each tensor."""
    table = Table("layer", "shape", "values", box=None)
    for name, tensor in model.state.items():
        table.add_row(escape(name), "×".join(map(str, tensor.shape)), f"{tensor.numel():,}")
    return table


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(map(str, value[:12]))}{' …' if len(value) > 12 else ''}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _sparsity(model: Model, masked: MaskedNetwork) -> Table:
    """Return a table with the share of kept weights in each layer as a bar."""
    mask = model.mask(masked) != 0
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
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set, or your own: a file or class/*.png counts whole (default: what it was trained on)."
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds data sets.")] = None,
    packed: Annotated[bool, typer.Option("--packed", help="Compute with 2-bit weights in memory.")] = False,
    net: Net = None,
    label: Label = None,
    client: Client = None,
) -> None:
    """Evaluate on the test part of a data set, on all rows of a table, or on all images of a folder class/*.png."""
    import torch

    from fedpm.cli.scored import check_fit, judged_by, scored_on
    from fedpm.model.weights import columns_of, open_model
    from fedpm.training.evaluation import evaluate
    from fedpm.training.losses import NUMBERS
    from fedpm.training.task import task_of

    model = open_model(file)
    network = _network(net, model)
    dataset, part = scored_on(file, model, data, data_dir, {"label": label, "client": client})
    loss, metrics = judged_by(file, model, labelled=dataset.labelled)
    dataset = dataset.ordered(columns_of(model), "the model")
    dataset = dataset.as_numbers() if loss in NUMBERS else dataset
    check_fit(model, dataset)
    find_beside([loss, *metrics])
    task, _, _ = task_of(loss, metrics, labelled=dataset.labelled)
    score = evaluate(model.module(network, packed=packed), dataset.test, torch.device("cpu"), task)
    figures = {**score.values, "loss": score.loss}
    shown = "  ".join(f"{escape(name)} {value:.4f}" for name, value in figures.items())
    console.print(f"{shown}  on {escape(part)}, {len(dataset.test):,} examples", highlight=False)


def _network(net: str | None, model: Model | Weights) -> nn.Module | None:
    """Return the network that a model of the user's own needs; a built-in one is known by its name."""
    if net is None:
        if model.header.network is None:
            raise ConfigError(
                "this model is of a network of your own: say what makes it with --net MODULE:FUNCTION, called without "
                "arguments, or use fedpm.load(file, net=…) in Python"
            )
        return None
    from torch import nn

    from fedpm.training.task import imported

    find_beside([net])
    made = imported("--net", net)
    try:
        made = made if isinstance(made, nn.Module) else made()
    except Exception as error:  # of the user's own
        raise ConfigError(f"--net {net}: should make the network when called without arguments ({error!r})") from None
    if not isinstance(made, nn.Module):
        raise ConfigError(f"--net {net}: gave {made!r:.80}; it should give an nn.Module")
    return made


@app.command()
def export(
    file: File,
    onnx: Annotated[Path | None, typer.Option(metavar="OUT", help="Write ONNX, checked on ONNX Runtime.")] = None,
    torch: Annotated[Path | None, typer.Option(metavar="OUT", help="Write float32 weights as .safetensors.")] = None,
    net: Net = None,
) -> None:
    """Write the model in another format."""
    if (onnx is None) == (torch is None):
        raise ConfigError("fedpm model export: give one of --onnx OUT and --torch OUT")
    if (out := onnx or torch) is not None and out.exists():
        raise ConfigError(f"{out}: exists already, and nothing is overwritten; choose another name, or remove it")
    from fedpm.model.export import to_onnx
    from fedpm.model.weights import Weights, WeightsHeader, open_model

    model = open_model(file)
    module = model.module(_network(net, model))
    about = model.header.model_dump(include=set(WeightsHeader.model_fields))
    if onnx is not None:
        said = WeightsHeader(**about).metadata()
        difference = to_onnx(module, model.header.input_shape, model.header.input_dtype, onnx, said)
        console.print(f"wrote {onnx}; ONNX Runtime agrees with PyTorch to {difference:.1e}", highlight=False)
    if torch is not None:
        Weights.of(module, **about).save(torch)
        console.print(f"wrote {torch}", highlight=False)
