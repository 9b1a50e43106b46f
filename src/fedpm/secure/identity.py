"""Who signs for which client: the node's own key, and the public keys of all nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey


@dataclass(frozen=True)
class Identity:
    """A node's key, and for every client the key of the node that hosts it."""

    key: EllipticCurvePrivateKey
    signers: Mapping[int, EllipticCurvePublicKey]
