"""What a mask coder is given and does."""

from dataclasses import dataclass
from typing import Protocol

from fedpm.registry import CoderSpec
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask, upload_uniform
from fedpm.wire.theta import Theta, Vector, Words


@dataclass(frozen=True)
class Context:
    """What both ends know when a client answers: θ_g, the shared streams of round and client, the layers' sizes."""

    theta: Theta
    shared: Streams
    sizes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of parameters."""
        return len(self.theta.numerator)

    def uniform(self) -> Words:
        """Return the u of this upload, if client and server share it."""
        return upload_uniform(self.shared, self.size)


class MaskCoder(Protocol):
    """Turns a client's θ_k into bytes, and bytes into a mask that is a sample of Bern(θ_k)."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask and code it; ``private`` are the client's own streams of this round, secret or of the seed."""

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask, or raise WireError."""


@dataclass(frozen=True)
class Coding:
    """A mask coder and its place on the wire.

    Args:
        coder: codes and decodes.
        name: in settings and errors.
        form: the number of what it coded.
        threshold_form: the same of a mask by threshold, None if it codes none.
        shared_uniform: whether its masks are 1[u < θ_k] with the u of ``Context.uniform``.
        secure: whether masks are summed in secret.
    """

    coder: MaskCoder
    name: str
    form: int
    threshold_form: int | None = None
    shared_uniform: bool = False
    secure: bool = False

    @classmethod
    def of(cls, spec: CoderSpec, coder: MaskCoder) -> "Coding":
        """Return a coder with what its spec says; unlike a spec it can move to other processes."""
        return cls(coder, spec.name, spec.form, spec.threshold_form, spec.shared_uniform, spec.secure)
