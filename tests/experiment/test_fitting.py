"""Tokens and types that a network cannot take: told with the value, whose it is, and what to give."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.experiment.fitting import MisfitError
from tests.small import small_config

ROWS = 50


class Words(nn.Module):
    """The mean of words, of which there are 50."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(ROWS, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.embedding(x).mean(1))  # type: ignore[no-any-return]


class Late(Words):
    """Looks up any token, but in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if self.training else x.clamp(0, ROWS - 1))


def texts(token: int = 0, at: str = "south", dtype: type = np.int64) -> fedpm.Federation:
    """Return two clients, and among the examples of one a token."""
    x, y = np.arange(360).reshape(60, 6) % ROWS, np.arange(60) % 2
    odd = x.copy()
    odd[:, 2] = token
    parts: dict[str, Any] = {
        name: ((odd if name == at else x).astype(dtype), y) for name in ("north", "south", "test data")
    }
    test = parts.pop("test data")
    return fedpm.federation(parts, test=test)


BEYOND = "a token is 77, and the embedding has 50 rows, 0 to 49: give it 78 rows at least, or give tokens that it has"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (texts(77), f"client south: {BEYOND}"),
        (texts(77, "test data"), f"the network cannot take an input of your data, of shape (6,): {BEYOND}"),
        (texts(-1), "client south: a token is -1, and rows of an embedding are numbered from 0: number tokens from 0"),
    ],
)
def test_a_token_without_a_row_is_told_before_the_first_round(data: fedpm.Federation, sentence: str) -> None:
    with pytest.raises(MisfitError, match=f"^{re.escape(sentence)}$"):
        fedpm.run(small_config(data={}), net=Words(), data=data)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_token_that_training_meets_first_is_told_with_its_client(workers: int) -> None:
    with pytest.raises(fedpm.DataError, match=f"^client south: {re.escape(BEYOND)}(\n|$)"):
        fedpm.run(small_config(data={}, workers=workers), net=Late(), data=texts(77), weights="random")


@pytest.mark.parametrize(
    ("net", "dtype", "remedy"),
    [
        (Words(), np.uint8, "they are uint8 and scaled to floats, as images are: give integers of another type, such"),
        (Words(), np.float32, "they are float32: give integers, such as int64, for tokens"),
        (
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)).double(),
            np.float32,
            "the network is float64, and inputs are float32: give net.float()",
        ),
        (nn.Linear(5, 2).double(), np.float32, "fit the first layer to this shape"),
        (nn.Linear(6, 2), np.int64, "they are int64: give floats, unless the first layer is an embedding"),
    ],
)
def test_a_type_that_does_not_fit_is_no_matter_of_shape(net: nn.Module, dtype: Any, remedy: str) -> None:
    with pytest.raises(MisfitError, match=f"; {re.escape(remedy)}"):
        fedpm.run(small_config(data={}), net=net, data=texts(dtype=dtype))
