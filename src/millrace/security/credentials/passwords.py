"""Who may log in by PLAIN: users of the configuration, or those whose SCRAM credentials are stored.

A check answers at once, or with work for a thread. Neither the answer nor the time that it takes tells
whether there is a user of that name.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millrace.security.credentials.scram import Decoys, ScramCredential, ScramMechanism, is_password


class PasswordCheck(Protocol):
    """Says whether a password is the user's, or returns the work that finds out."""

    def check(self, user: str, password: str) -> bool | Callable[[], bool]: ...


@dataclass(frozen=True, slots=True)
class PasswordWork:
    """Finds out whether a password fits a credential: for a thread. Shows neither of them."""

    mechanism: ScramMechanism
    credential: ScramCredential
    password: str = field(repr=False)

    def __call__(self) -> bool:
        return is_password(self.mechanism, self.credential, self.password)


class ConfiguredUsers:
    """Users with their passwords, from `user_NAME=` in the JAAS configuration of a listener."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        # Hashed, so that comparing takes the same time for passwords of all lengths.
        self._hashes = {user: _hash(password) for user, password in passwords.items()}
        self._nobody = bytes(hashlib.sha256().digest_size)

    def check(self, user: str, password: str) -> bool:
        expected = self._hashes.get(user, self._nobody)
        is_equal = hmac.compare_digest(expected, _hash(password))
        return is_equal and user in self._hashes


FindCredential = Callable[[ScramMechanism, str], ScramCredential | None]


class StoredUsers:
    """Users with SCRAM credentials. Of one who has two, the stronger counts."""

    def __init__(self, find: FindCredential, decoys: Decoys) -> None:
        self._find = find
        self._decoys = decoys

    def check(self, user: str, password: str) -> PasswordWork:
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            credential = self._find(mechanism, user)
            if credential is not None:
                return PasswordWork(mechanism, credential, password)
        # Either mechanism, always the same for a name: by the time alone nobody tells whether it is a user's.
        decoy = self._decoys.credential(ScramMechanism.SHA_512, user)
        mechanism = ScramMechanism.SHA_512 if decoy.server_key[0] & 1 else ScramMechanism.SHA_256
        return PasswordWork(mechanism, self._decoys.credential(mechanism, user), password)


def _hash(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
