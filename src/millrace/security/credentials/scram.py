"""SCRAM credentials (RFC 5802): what is kept instead of a password, how it is made, and how one is checked.

From a password, a salt and a number of iterations comes the salted password, which is dear to compute; from
that come two keys, and only those are kept. Passwords are taken as UTF-8, without SASLprep, as Kafka does.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

ITERATIONS_MIN: Final = 4_096
"""Of both mechanisms, in RFC 7677 and in Kafka."""
ITERATIONS_MAX: Final = 16_384
"""Kafka's. Every check of a password in the clear costs us as many steps."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT_BITS: Final = 130


class Chance(Protocol):
    """Where randomness comes from: a `random.SystemRandom`, or a seeded one in a simulation."""

    def getrandbits(self, k: int, /) -> int: ...


class ScramMechanism(Enum):
    """The two mechanisms, by their numbers in Kafka's requests."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def label(self) -> str:
        """Its name in SASL: SCRAM-SHA-256."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def digest(self) -> str:
        """The name of its hash function for `hashlib`."""
        return self.name.replace("_", "").lower()


def scram_mechanism(code: int) -> ScramMechanism | None:
    """By its number in requests; None for any other number."""
    return next((mechanism for mechanism in ScramMechanism if mechanism.value == code), None)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept of a password. Whoever has it can pose as the broker, so it is not shown either."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes a millisecond or more: to be called off the loop."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode("utf-8", "surrogatepass"), salt, iterations)


def credential_of_salted(
    mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """From the salted password, which is what clients send when they set a password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.digest),
        iterations=iterations,
    )


def derive_credential(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """From the password itself. Takes a millisecond or more: to be called off the loop."""
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of_salted(mechanism, salted, salt=salt, iterations=iterations)


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether this is the password. Takes a millisecond or more: to be called off the loop."""
    derived = derive_credential(mechanism, password, salt=credential.salt, iterations=credential.iterations)
    return hmac.compare_digest(derived.stored_key, credential.stored_key)


def random_text(chance: Chance) -> str:
    """130 bits in letters and digits: the form of Kafka's nonces and salts."""
    return _in_letters(chance.getrandbits(_TEXT_BITS))


class Decoys:
    """Credentials for users that are not there, so that asking for one looks like a wrong password.

    The same name gets the same salt every time, from every broker with the same key, and in the form that
    Kafka's tools give to salts; nobody knows a password that fits. What they cannot hide is a user whose
    number of iterations is not the usual one."""

    def __init__(self, key: bytes, iterations: int = ITERATIONS_MIN) -> None:
        self._key = key
        self._iterations = iterations

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        seed = hmac.digest(self._key, f"{mechanism.label}:{name}".encode("utf-8", "surrogatepass"), "sha512")
        size = hashlib.new(mechanism.digest).digest_size
        salt = _in_letters(int.from_bytes(seed, "big") >> (8 * len(seed) - _TEXT_BITS))
        return ScramCredential(
            salt=salt.encode(),
            # Of the same work as those of users: the proof is computed, compared and found wanting.
            stored_key=hmac.digest(seed, b"stored", "sha512")[:size],
            server_key=hmac.digest(seed, b"server", "sha512")[:size],
            iterations=self._iterations,
        )


def _in_letters(number: int) -> str:
    letters = []
    while number:
        number, digit = divmod(number, len(_DIGITS))
        letters.append(_DIGITS[digit])
    return "".join(reversed(letters)) or "0"
