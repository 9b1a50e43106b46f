"""MiniLM, a small BERT encoder of sentences (Wang et al. 2020), as a chain of modules: embeddings, blocks, mean, head.

Parameters bear the names of the published file. A chain passes one tensor on, so that which tokens are padding goes
along as one more channel.
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, INNER, BLOCKS, VOCABULARY, POSITIONS = 384, 12, 1536, 6, 30_522, 512
_EPSILON = 1e-12


class Embeddings(nn.Module):
    """Turns token numbers, 0 for padding, into vectors with a channel of 1 for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, _EPSILON)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, width + 1)."""
        places = self.position_embeddings.weight[: tokens.shape[1]]
        x = self.word_embeddings(tokens) + self.token_type_embeddings.weight[0] + places
        return torch.cat([self.LayerNorm(x), (tokens != 0)[..., None].to(x.dtype)], -1)


class Block(nn.Module):
    """Attention and two linear layers, each with what came in added and normed."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attended, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, _EPSILON)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, _EPSILON)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the same shape."""
        x, real = given[..., :-1], given[..., -1:]
        query, key, value = (
            layer(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attention = F.scaled_dot_product_attention(query, key, value, real[:, None, None, :, 0] > 0)
        x = self.norm(x + self.attended(attention.transpose(1, 2).flatten(2)))
        x = self.output_norm(x + self.outer(F.gelu(self.inner(x))))
        return torch.cat([x, real], -1)


class Mean(nn.Module):
    """The mean over tokens: the sentence's vector."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return (batch, width)."""
        x, real = given[..., :-1], given[..., -1:]
        return (x * real).sum(1) / real.sum(1)


RENAMED = {
    "attention.self.": "",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "output_norm",
}


def minilm(classes: int, published: dict[str, torch.Tensor] | None = None) -> nn.Sequential:
    """Return MiniLM with a new head, its values those of the published file if given; names are 0, 1 … 6, 7, 8."""
    head = nn.Linear(WIDTH, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    net = nn.Sequential(Embeddings(), *(Block() for _ in range(BLOCKS)), Mean(), head)
    if published is not None:
        net.load_state_dict({_renamed(n): v for n, v in published.items() if _renamed(n)}, strict=False)
    return net


def _renamed(name: str) -> str:
    """Return the name here of a parameter of the published file, nothing if it has none."""
    if name.startswith("embeddings.") and not name.endswith("position_ids"):
        return name.replace("embeddings.", "0.", 1)
    if not name.startswith("encoder.layer."):
        return ""
    _, _, block, rest = name.split(".", 3)
    for before, after in RENAMED.items():
        if rest.startswith(before):
            return f"{int(block) + 1}.{rest.replace(before, after, 1)}"
    raise KeyError(name)
