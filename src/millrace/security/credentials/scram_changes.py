"""What DescribeUserScramCredentials (50) and AlterUserScramCredentials (51) answer, and what they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.core.errors import MillraceError
from millrace.security.credentials.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of_salted,
    scram_mechanism,
)
from millrace.security.errors import (
    CredentialNotFound,
    DuplicateCredential,
    UnacceptableCredential,
    UnknownScramMechanism,
)


class CredentialKey(NamedTuple):
    """Names one credential: a user has at most one for each mechanism."""

    user: str
    mechanism: ScramMechanism


Credentials = Mapping[CredentialKey, ScramCredential]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsertion:
    """A wish to set a credential, with the number of the mechanism as it came."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A wish to remove a credential, with the number of the mechanism as it came."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What is to be written and removed, together or not at all, and what each user is answered."""

    written: tuple[tuple[CredentialKey, ScramCredential], ...]
    removed: tuple[CredentialKey, ...]
    results: Mapping[str, MillraceError | None]
    """By user, in the order in which the request first names them; None where the wish is granted."""


@dataclass(frozen=True, slots=True)
class Description:
    """What may be told of one user's credentials: which there are, with how many iterations."""

    user: str
    iterations: tuple[tuple[ScramMechanism, int], ...] = ()
    error: MillraceError | None = None


def describe(known: Credentials, users: Sequence[str] | None) -> list[Description]:
    """Of these users, or of all if none is named."""
    if not users:
        return [_described(known, user) for user in dict.fromkeys(key.user for key in known)]
    counts: dict[str, int] = {}
    for user in users:
        counts[user] = counts.get(user, 0) + 1
    return [_described(known, user) if count == 1 else _twice(user) for user, count in counts.items()]


def alter(known: Credentials, deletions: Iterable[Deletion], upsertions: Iterable[Upsertion]) -> Alteration:
    """Decide about every user on its own; nobody may be named twice, also not for two mechanisms."""
    results: dict[str, MillraceError | None] = {}
    removed: dict[str, CredentialKey] = {}
    written: dict[str, tuple[CredentialKey, ScramCredential]] = {}
    wishes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    for wish in wishes:
        if wish.user in results:
            removed.pop(wish.user, None)
            written.pop(wish.user, None)
            # Whatever else was wrong with the first wish has been told already.
            if results[wish.user] is None:
                results[wish.user] = DuplicateCredential(
                    "A user credential cannot be altered twice in the same request"
                )
            continue
        try:
            if isinstance(wish, Deletion):
                removed[wish.user] = _checked_deletion(known, wish)
            else:
                written[wish.user] = _checked_upsertion(wish)
        except MillraceError as error:
            results[wish.user] = error
        else:
            results[wish.user] = None
    return Alteration(written=tuple(written.values()), removed=tuple(removed.values()), results=results)


def _described(known: Credentials, user: str) -> Description:
    found = tuple(
        (mechanism, credential.iterations)
        for mechanism in ScramMechanism
        if (credential := known.get(CredentialKey(user, mechanism))) is not None
    )
    if not found:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return Description(user, error=CredentialNotFound(text))
    return Description(user, found)


def _twice(user: str) -> Description:
    text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    return Description(user, error=DuplicateCredential(text))


def _checked_key(user: str, code: int) -> CredentialKey:
    if not user:
        raise UnacceptableCredential("Username must not be empty")
    mechanism = scram_mechanism(code)
    if mechanism is None:
        raise UnknownScramMechanism
    return CredentialKey(user, mechanism)


def _checked_deletion(known: Credentials, wish: Deletion) -> CredentialKey:
    key = _checked_key(wish.user, wish.mechanism)
    if key not in known:
        raise CredentialNotFound("Attempt to delete a user credential that does not exist")
    return key


def _checked_upsertion(wish: Upsertion) -> tuple[CredentialKey, ScramCredential]:
    key = _checked_key(wish.user, wish.mechanism)
    if wish.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential("Too few iterations")
    if wish.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential("Too many iterations")
    if not wish.salted_password:
        # Nobody can log in with an empty key; Kafka fails on it with an unknown error.
        raise UnacceptableCredential("Salted password must not be empty")
    credential = credential_of_salted(
        key.mechanism, wish.salted_password, salt=wish.salt, iterations=wish.iterations
    )
    return key, credential
