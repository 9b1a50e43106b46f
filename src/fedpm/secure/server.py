"""The server of a secure sum: it passes messages on, adds masked inputs, and takes the pads off their sum."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedpm.errors import EngineError, WireError
from fedpm.secure import keys, messages, shamir
from fedpm.secure.messages import SEALED, Advert, Secret, Stage
from fedpm.secure.session import Session
from fedpm.secure.vectors import Vectors, Words


class Server:
    """One session: ``receive`` what came of a stage, then ``advance`` for the next one's messages; at last ``sum``.

    A client that does not answer, or not with what is due, is out from then on.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stage = Stage.ADVERTISE
        self._asked = set(session.clients)
        self._answered: set[int] = set()
        self._adverts: dict[int, Advert] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # by receiver, by sender
        self._shared: set[int] = set()
        self._summed: set[int] = set()
        self._total = Vectors(session.parts)
        self._shares: dict[int, dict[int, bytes]] = {}  # by owner, by holder

    @property
    def stage(self) -> Stage:
        """Which message of the clients is due."""
        return self._stage

    @property
    def summed(self) -> frozenset[int]:
        """The clients whose inputs are in the sum."""
        return frozenset(self._summed)

    def receive(self, client: int, data: bytes) -> None:
        """Take a client's message of this stage; anything else raises WireError and changes nothing."""
        body = messages.unframe(self._session, self._stage, client, data)
        if client not in self._asked or client in self._answered:
            raise WireError(f"client {client} was not asked, or has answered already", "replay")
        match self._stage:
            case Stage.ADVERTISE:
                self._take_advert(client, messages.unpack_advert(body))
            case Stage.SHARES:
                self._take_shares(client, messages.unpack_records(body, SEALED))
            case Stage.MASKED:
                self._total.add_bytes(body)
            case _:
                self._take_reveals(client, messages.unpack_records(body, 1 + shamir.SHARE))
        self._answered.add(client)

    def advance(self) -> dict[int, bytes]:
        """End the stage and return the next message for each client that is still in."""
        if len(self._answered) < self._session.threshold:
            raise EngineError(
                f"secure sum: {len(self._answered)} of {len(self._session.clients)} clients are left after the stage "
                f"{self._stage.name.lower()}, fewer than the threshold of {self._session.threshold}: "
                "nothing can be summed; sum again with those that are well"
            )
        match self._stage:
            case Stage.ADVERTISE:
                stage, told = Stage.KEYS, {client: self._keys(client) for client in self._answered}
            case Stage.SHARES:
                self._shared = self._answered
                stage, told = Stage.DELIVERY, {client: self._delivery(client) for client in self._answered}
            case Stage.MASKED:
                self._summed = self._answered
                stage, told = Stage.REQUEST, {client: self._request(client) for client in self._answered}
            case _:
                raise EngineError("secure sum: there is no stage after the last; take the sum")
        self._stage, self._asked, self._answered = Stage(stage + 1), self._answered, set()
        return {c: messages.frame(self._session, stage, c, messages.pack_records(told[c])) for c in sorted(told)}

    def sum(self) -> list[Words]:
        """Take the pads off and return the sum over ``summed``, a vector for each part."""
        if self._stage is not Stage.REVEAL:
            raise EngineError(f"secure sum: the stage {self._stage.name.lower()} is not the last; advance first")
        padded = [c for c in sorted(self._shared) if c in self._summed or self._around(c, self._summed)]
        secrets = {client: self._secret(client) for client in padded}
        for client, secret in secrets.items():
            if client in self._summed:
                self._total.add_pad(keys.own_seed(self._session, secret, client), sign=-1)
            else:
                self._remove_pairs(client, keys.pads_key(self._session, secret, client))
        self._shared = set()  # a second call has nothing left to take off
        return self._total.values()

    def _remove_pairs(self, gone: int, private: X25519PrivateKey) -> None:
        """Take off the pads that those who stayed had with one that did not."""
        for client in self._session.neighbours(gone) & self._summed:
            seed = keys.pair_seed(self._session, private, self._adverts[client].pads, client, gone)
            self._total.add_pad(seed, sign=-1 if client < gone else 1)

    def _secret(self, owner: int) -> bytes:
        """Join the shares of the secret that was asked for, and check it against what its owner advertised."""
        shares, threshold = self._shares.get(owner, {}), self._session.threshold
        if len(shares) < threshold:
            raise EngineError(
                f"secure sum: {len(shares)} shares of a secret of client {owner} were told, fewer than the threshold "
                f"of {threshold}: the sum stays hidden; sum again with those that are well"
            )
        secret, advert = shamir.join(dict(sorted(shares.items())[:threshold])), self._adverts[owner]
        if secret is None or not self._fits(owner, secret, advert):
            raise EngineError(f"secure sum: the shares told of client {owner} do not fit: some client lied; sum again")
        return secret

    def _fits(self, owner: int, secret: bytes, advert: Advert) -> bool:
        if owner in self._summed:
            return keys.commit(self._session, secret, owner) == advert.commitment
        return keys.pads_key(self._session, secret, owner).public_key().public_bytes_raw() == advert.pads

    def _around(self, client: int, among: set[int]) -> list[int]:
        return sorted(self._session.neighbours(client) & among)

    def _keys(self, client: int) -> dict[int, bytes]:
        return {other: messages.pack_advert(self._adverts[other]) for other in self._around(client, self._answered)}

    def _delivery(self, client: int) -> dict[int, bytes]:
        return {other: self._sealed[client][other] for other in self._around(client, self._shared)}

    def _request(self, client: int) -> dict[int, bytes]:
        owners = [client, *self._around(client, self._shared)]
        return {owner: bytes([self._due(owner)]) for owner in owners}

    def _due(self, owner: int) -> Secret:
        return Secret.SEED if owner in self._summed else Secret.KEY

    def _take_advert(self, client: int, advert: Advert) -> None:
        for public in (advert.pads, advert.shares):
            keys.agree(X25519PrivateKey.generate(), public)  # one of low order would put its neighbours out too
        self._adverts[client] = advert

    def _take_shares(self, client: int, records: dict[int, bytes]) -> None:
        wanted = self._around(client, self._asked)
        if list(records) != wanted:
            raise WireError(f"shares of client {client} are for {list(records)} instead of {wanted}")
        for receiver, sealed in records.items():
            self._sealed.setdefault(receiver, {})[client] = sealed

    def _take_reveals(self, client: int, records: dict[int, bytes]) -> None:
        known = {client, *self._around(client, self._shared)}
        for owner, record in records.items():
            if owner not in known or messages.unpack_choice(record) is not self._due(owner):
                raise WireError(f"client {client} tells a secret of client {owner} that it was not asked for")
            if int.from_bytes(record[1:], "big") >= shamir.PRIME:
                raise WireError(f"client {client} tells a share of client {owner} beyond the field: it is damaged")
        for owner, record in records.items():
            self._shares.setdefault(owner, {})[client] = record[1:]
