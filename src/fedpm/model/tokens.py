"""Tokens that an embedding of a network has no row for: torch names neither them nor whose they are."""

from typing import Any

from torch import nn


def tables_of(net: nn.Module) -> list[int]:
    """Return how many rows each embedding of a network has."""
    return [module.num_embeddings for module in net.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]


def unknown_token(net: nn.Module, x: Any) -> str:
    """Return which token of some inputs an embedding has no row for, with the remedy; nothing if there is none.

    To be asked where a lookup failed: inputs may be whole numbers without being tokens.
    """
    if not tables_of(net) or x.dtype.kind not in "iu" or not x.size:
        return ""
    least, most = int(x.min()), int(x.max())
    if least < 0:
        return f"a token is {least}, and rows of an embedding are numbered from 0: number tokens from 0"
    rows = max((rows for rows in tables_of(net) if rows <= most), default=0)
    if not rows:
        return ""
    return (
        f"a token is {most}, and the embedding has {rows} rows, 0 to {rows - 1}: give it {most + 1} rows at "
        "least, or give tokens that it has"
    )
