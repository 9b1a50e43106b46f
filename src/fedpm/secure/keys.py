"""Keys of one secure sum: agreed by X25519, derived by HKDF, signed by the long-lived key of a node."""

import struct

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedpm.errors import WireError
from fedpm.secure.messages import SIGNATURE, Advert
from fedpm.secure.session import Session

_NONCE = bytes(12)  # a key is made for one message of one session


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return what two key pairs share; a key that would make it guessable raises WireError."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise WireError(
            "a public key of low order, with which nothing is secret: its client is to be left out"
        ) from None


def derive(session: Session, secret: bytes, purpose: bytes, *clients: int) -> bytes:
    """Return a key for one purpose between these clients in this session."""
    info = b"fedpm secure sum 1 " + purpose + session.digest + struct.pack(f"<{len(clients)}I", *clients)
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)


def pads_key(session: Session, secret: bytes, client: int) -> X25519PrivateKey:
    """Return the key of a client's pads with others, which follows from 16 bytes: they are what is shared."""
    return X25519PrivateKey.from_private_bytes(derive(session, secret, b"pads", client))


def pair_seed(session: Session, private: X25519PrivateKey, public: bytes, one: int, other: int) -> bytes:
    """Return the seed of the pad of two clients, the same for both."""
    return derive(session, agree(private, public), b"pair", min(one, other), max(one, other))


def own_seed(session: Session, secret: bytes, client: int) -> bytes:
    """Return the seed of a client's own pad."""
    return derive(session, secret, b"own", client)


def commit(session: Session, secret: bytes, client: int) -> bytes:
    """Return a hash that binds a client to its secret without telling it."""
    return derive(session, secret, b"commitment", client)


def seal(session: Session, shared: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    """Encrypt what a client tells another through the server."""
    return ChaCha20Poly1305(derive(session, shared, b"share", sender, receiver)).encrypt(_NONCE, text, None)


def unseal(session: Session, shared: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """Decrypt what a client was told; None if it is not what the sender wrote."""
    try:
        return ChaCha20Poly1305(derive(session, shared, b"share", sender, receiver)).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        return None


def sign(session: Session, client: int, advert: Advert, key: EllipticCurvePrivateKey) -> bytes:
    """Return a node's signature of the keys that its client advertises."""
    r, s = decode_dss_signature(key.sign(_statement(session, client, advert), ECDSA(SHA256())))
    return r.to_bytes(SIGNATURE // 2, "big") + s.to_bytes(SIGNATURE // 2, "big")


def verify(session: Session, client: int, advert: Advert, key: EllipticCurvePublicKey) -> None:
    """Raise WireError unless the node signed these keys for this client and session."""
    r, s = (
        int.from_bytes(half, "big") for half in (advert.signature[: SIGNATURE // 2], advert.signature[SIGNATURE // 2 :])
    )
    try:
        key.verify(encode_dss_signature(r, s), _statement(session, client, advert), ECDSA(SHA256()))
    except InvalidSignature:
        raise WireError(
            f"keys of client {client} are not signed by its node: somebody put others in their place"
        ) from None


def dump(key: EllipticCurvePublicKey) -> bytes:
    """Return a node's public key as OpenSSH writes it."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def load(data: bytes) -> EllipticCurvePublicKey:
    """Read a node's public key as OpenSSH writes it; anything else raises ValueError."""
    try:
        key = load_ssh_public_key(data)
    except UnsupportedAlgorithm:
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("not a key of an elliptic curve")
    return key


def _statement(session: Session, client: int, advert: Advert) -> bytes:
    return b"fedpm secure sum 1 keys" + session.digest + struct.pack("<I", client) + advert.signed
