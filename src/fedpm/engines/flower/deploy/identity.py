"""The keys by which a node knows the others in a secure sum, so that the server cannot pose as one of them.

A node config names both: ``signing-key`` is the node's own private key, ``signers`` a copy of the table that
``fedpm flower register`` writes. The copy is to reach the node by a way on which the server cannot change it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedpm.engines.base import Clients
from fedpm.engines.flower.deploy.nodes import read_table
from fedpm.engines.flower.node import hosted_clients
from fedpm.errors import ConfigError
from fedpm.methods.mask.secured import SecureFedPM
from fedpm.secure import keys
from fedpm.secure.identity import Identity

KEY, SIGNERS = "signing-key", "signers"


def signing(clients: Clients, node: Mapping[str, Any]) -> Clients:
    """Return the clients of a node as they sign their round keys and check those of others, if its config says so."""
    if not isinstance(clients.method, SecureFedPM) or not {KEY, SIGNERS} & node.keys():
        return clients
    if missing := {KEY, SIGNERS} - node.keys():
        raise ConfigError(f"node config has no {missing.pop()}: {KEY} and {SIGNERS} belong together")
    key, table = (Path(str(node[name])).expanduser() for name in (KEY, SIGNERS))
    identity = Identity(_private(key), _signers(table, len(clients.parts)))
    return replace(clients, method=replace(clients.method, identity=identity))


def _private(file: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{KEY} = {file}: cannot be read ({error}); give the node's own key") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{KEY} = {file}: a node's key is of an elliptic curve (ssh-keygen -t ecdsa -b 384)")
    return key


def _signers(file: Path, total: int) -> dict[int, EllipticCurvePublicKey]:
    """Return the key that signs for each client."""
    if not file.is_file():
        raise ConfigError(f"{SIGNERS} = {file}: there is no such file; copy the server's fedpm-nodes.jsonl here")
    nodes = read_table(file).values()
    try:
        return {
            client: keys.load(node.public.encode())
            for node in nodes
            if node.public
            for client in hosted_clients(node.partition, node.partitions, total)
        }
    except ValueError:
        raise ConfigError(f"{SIGNERS} = {file}: a key in it is none of an elliptic curve; register it again") from None
