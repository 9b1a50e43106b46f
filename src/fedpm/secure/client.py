"""A client of a secure sum: four messages, each of which it sends once."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedpm.errors import WireError
from fedpm.secure import keys, messages, shamir
from fedpm.secure.messages import SEALED, Advert, Secret, Stage
from fedpm.secure.session import Session
from fedpm.secure.vectors import Vectors

Signers = Mapping[int, EllipticCurvePublicKey]
_PRIVATE = ("_pads", "_channel")


class Client:
    """One client in one session: ``advertise``, ``share``, ``mask``, ``reveal``, in this order and once each.

    Its secrets come from the operating system, not from the run's seed: who knows the seed must not know them. ``key``
    signs what it advertises; with ``signers``, the keys of others count only if their nodes signed them.
    """

    def __init__(
        self, session: Session, client: int, key: EllipticCurvePrivateKey | None = None, signers: Signers | None = None
    ) -> None:
        self._session, self._client, self._key, self._signers = session, client, key, signers
        if client not in session.clients:
            raise WireError(f"client {client} is none of the clients {session.clients} of this sum", "wrong client")
        self._neighbours = session.neighbours(client)
        if signers is not None:
            self._signers = {other: signers[other] for other in self._neighbours if other in signers}
        self._seed, self._secret = secrets.token_bytes(shamir.SECRET), secrets.token_bytes(shamir.SECRET)
        self._pads, self._channel = keys.pads_key(session, self._secret, client), X25519PrivateKey.generate()
        self._due: int | None = Stage.ADVERTISE
        self._adverts: dict[int, Advert] = {}
        self._shares: dict[int, bytes] = {}  # two shares by owner, of those that are summed with this one
        self._summed: set[int] = set()

    @property
    def due(self) -> Stage | None:
        """Which message this client is to send next."""
        return None if self._due is None else Stage(self._due)

    def __getstate__(self) -> dict[str, Any]:
        """Leave for another process, or for the time until the server's next message; the node's key stays behind."""
        private = {name: getattr(self, name).private_bytes_raw() for name in _PRIVATE}
        signers = None if self._signers is None else {client: keys.dump(key) for client, key in self._signers.items()}
        return {**self.__dict__, **private, "_key": None, "_signers": signers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive."""
        private = {name: X25519PrivateKey.from_private_bytes(state[name]) for name in _PRIVATE}
        signers = state["_signers"] and {client: keys.load(key) for client, key in state["_signers"].items()}
        self.__dict__.update({**state, **private, "_signers": signers})

    def advertise(self) -> bytes:
        """Return this client's public keys."""
        self._enter(Stage.ADVERTISE)
        pads, channel = (key.public_key().public_bytes_raw() for key in (self._pads, self._channel))
        advert = Advert(pads, channel, keys.commit(self._session, self._seed, self._client))
        if self._key is not None:
            signature = keys.sign(self._session, self._client, advert, self._key)
            advert = replace(advert, signature=signature)
        return self._frame(Stage.ADVERTISE, messages.pack_advert(advert))

    def share(self, data: bytes) -> bytes:
        """Take the keys of the neighbours and return shares of both secrets, sealed for each of them."""
        self._enter(Stage.SHARES)
        records = messages.unpack_records(self._body(Stage.KEYS, data), 96 + messages.SIGNATURE)
        self._require(records, self._neighbours, "advertised keys")
        self._adverts = {client: messages.unpack_advert(record) for client, record in records.items()}
        for client, advert in self._adverts.items() if self._signers is not None else ():
            self._verify(client, advert)
        holders, threshold = [self._client, *records], self._session.threshold
        seed, key = (shamir.split(value, holders, threshold) for value in (self._seed, self._secret))
        self._shares[self._client] = seed[self._client] + key[self._client]
        sealed = {other: self._seal(other, seed[other] + key[other]) for other in records}
        return self._frame(Stage.SHARES, messages.pack_records(sealed))

    def mask(self, data: bytes, values: Sequence[npt.NDArray[np.integer]]) -> bytes:
        """Take the neighbours' shares and return the input under its own pad and one with each of them."""
        self._enter(Stage.MASKED)
        records = messages.unpack_records(self._body(Stage.DELIVERY, data), SEALED)
        self._require(records, self._adverts.keys(), "shared secrets")
        self._summed = {self._client, *records}
        for other, sealed in records.items():
            opened = keys.unseal(self._session, self._agreed(other), other, self._client, sealed)
            if opened is not None:  # a share less of one that erred; its pad is due all the same
                self._shares[other] = opened
        vectors = Vectors(self._session.parts)
        vectors.add(values)
        vectors.add_pad(keys.own_seed(self._session, self._seed, self._client), sign=1)
        for other in records:
            seed = keys.pair_seed(self._session, self._pads, self._adverts[other].pads, self._client, other)
            vectors.add_pad(seed, sign=1 if self._client < other else -1)
        return self._frame(Stage.MASKED, vectors.to_bytes())

    def reveal(self, data: bytes) -> bytes:
        """Take which neighbours stayed and return a share of one secret of each: never of both of one."""
        self._enter(Stage.REVEAL)
        records = messages.unpack_records(self._body(Stage.REQUEST, data), 1)
        asked = {owner: messages.unpack_choice(record) for owner, record in records.items()}
        if asked.keys() != self._summed:
            raise WireError(
                f"asked about clients {sorted(asked)} instead of {sorted(self._summed)}, who share pads here"
            )
        if asked[self._client] is not Secret.SEED:
            raise WireError("asked for this client's key as if it had not sent its input: its input would lie open")
        self._require([c for c in asked if c != self._client and asked[c] is Secret.SEED], self._summed, "sent inputs")
        told = {owner: self._choose(asked[owner], pair) for owner, pair in self._shares.items() if owner in asked}
        return self._frame(Stage.REVEAL, messages.pack_records(told))

    def _enter(self, stage: Stage) -> None:
        """Refuse a step that is not due; after one that failed there is none: secrets serve one attempt."""
        if stage != self._due:
            raise WireError(f"{stage.name.lower()} is not due: a client takes each step of a secure sum once", "replay")
        self._due = None

    def _require(self, found: Collection[int], known: Collection[int], did: str) -> None:
        strangers = [client for client in found if client not in known]
        if strangers:
            raise WireError(f"clients {strangers} are none of those that client {self._client} knows here")
        if 1 + len(found) < self._session.threshold:
            raise WireError(
                f"{1 + len(found)} of the clients around {self._client} {did}, fewer than the threshold of "
                f"{self._session.threshold}: it gives nothing away; sum again with those that are well"
            )

    def _verify(self, client: int, advert: Advert) -> None:
        signer = (self._signers or {}).get(client)
        if signer is None:
            raise WireError(f"no key of the node of client {client} is known here: its keys cannot be trusted")
        keys.verify(self._session, client, advert, signer)

    def _agreed(self, other: int) -> bytes:
        return keys.agree(self._channel, self._adverts[other].shares)

    def _seal(self, other: int, text: bytes) -> bytes:
        return keys.seal(self._session, self._agreed(other), self._client, other, text)

    def _choose(self, secret: Secret, pair: bytes) -> bytes:
        half = pair[: shamir.SHARE] if secret is Secret.SEED else pair[shamir.SHARE :]
        return bytes([secret]) + half

    def _body(self, stage: Stage, data: bytes) -> bytes:
        return messages.unframe(self._session, stage, self._client, data)

    def _frame(self, stage: Stage, body: bytes) -> bytes:
        self._due = stage + 2 if stage < Stage.REVEAL else None
        return messages.frame(self._session, stage, self._client, body)
