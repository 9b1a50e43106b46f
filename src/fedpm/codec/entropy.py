"""Entropy coding of integer symbols with constriction's ANS coder, which is a stack.

    encoder = Encoder()
    encoder.push(symbols, bernoulli(0.25))
    decoder = Decoder(encoder.to_bytes())
    symbols = decoder.pop(bernoulli(0.25), count)
    decoder.finish()

What is pushed last is popped first. Probabilities must be computed from integers, the same way at both ends.
"""

from typing import Any

import constriction
import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError

models = constriction.stream.model
AnsCoder = constriction.stream.stack.AnsCoder
Symbols = npt.NDArray[np.int32]


def bernoulli(p: float) -> Any:
    """Return the model of bits that are 1 with probability p; p of 0 or 1 still codes the other bit."""
    return models.Bernoulli(p, perfect=False)


def categorical(histogram: npt.NDArray[np.uint32]) -> Any:
    """Return the model of symbols 0, 1, … that occur as often as the histogram says."""
    return models.Categorical(histogram / np.float64(max(1, histogram.sum(dtype=np.uint64))), perfect=False)


class Encoder:
    """A growing stack of symbols."""

    def __init__(self) -> None:
        self._ans = AnsCoder()

    def push(self, symbols: npt.NDArray[Any], model: Any) -> None:
        """Add symbols so that ``pop`` returns them in the same order."""
        self._ans.encode_reverse(symbols.astype(np.int32, copy=False), model)

    def to_bytes(self) -> bytes:
        """Return everything pushed, in whole 32-bit words."""
        words: npt.NDArray[np.uint32] = self._ans.get_compressed()
        return words.astype("<u4", copy=False).tobytes()


class Decoder:
    """The way back; any bytes decode to some symbols or raise WireError."""

    def __init__(self, data: bytes) -> None:
        if len(data) % 4:
            raise WireError(f"coded data of {len(data)} bytes: should be whole 32-bit words, so it was cut or damaged")
        try:
            self._ans = AnsCoder(np.frombuffer(data, "<u4").astype(np.uint32))
        except ValueError:
            raise WireError("coded data ends in a zero word, which the coder never writes: it is damaged") from None

    def pop(self, model: Any, count: int) -> Symbols:
        """Return the next symbols."""
        symbols: Symbols = self._ans.decode(model, count)
        return symbols

    def finish(self) -> None:
        """Check that nothing is left: a wrong model or damaged data leaves the stack out of step."""
        if not self._ans.is_empty():
            raise WireError(
                "coded data does not end where its symbols do: it is damaged or was coded for another model"
            )
