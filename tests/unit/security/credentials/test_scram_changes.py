"""DescribeUserScramCredentials and AlterUserScramCredentials decide as Kafka's ScramControlManager does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.credentials.scram import (
    ScramCredential,
    ScramMechanism,
    derive_credential,
    salted_password,
)
from millrace.security.credentials.scram_changes import (
    CredentialKey,
    Deletion,
    Upsertion,
    alter,
    describe,
)
from millrace.security.errors import (
    CredentialNotFound,
    DuplicateCredential,
    UnacceptableCredential,
    UnknownScramMechanism,
)

SHA_256, SHA_512 = ScramMechanism
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 8192)
KNOWN = {
    CredentialKey("alice", SHA_256): CREDENTIAL,
    CredentialKey("alice", SHA_512): CREDENTIAL,
    CredentialKey("bob", SHA_512): CREDENTIAL,
}


def upsertion(
    user: str = "carol", mechanism: int = 1, iterations: int = 4096, salted: bytes = b"x"
) -> Upsertion:
    return Upsertion(
        user=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted
    )


@pytest.mark.parametrize("users", [None, []])
def test_all_users_are_described_if_none_is_named(users: list[str] | None) -> None:
    assert [(one.user, one.iterations, one.error) for one in describe(KNOWN, users)] == [
        ("alice", ((SHA_256, 8192), (SHA_512, 8192)), None),
        ("bob", ((SHA_512, 8192),), None),
    ]


def test_unknown_users_and_those_named_twice_get_their_own_errors() -> None:
    twice, bob, missing = describe(KNOWN, ["alice", "bob", "alice", "nobody"])
    assert isinstance(twice.error, DuplicateCredential)
    assert twice.iterations == ()
    assert (bob.error, bob.iterations) == (None, ((SHA_512, 8192),))
    assert isinstance(missing.error, CredentialNotFound)
    assert str(missing.error).endswith("does not exist: nobody")


def test_the_salted_password_is_turned_into_keys_and_forgotten() -> None:
    salted = salted_password(SHA_512, "pencil", b"salt", 4096)
    alteration = alter({}, [], [upsertion("alice", 2, 4096, salted)])
    ((key, credential),) = alteration.written
    assert key == ("alice", SHA_512)
    assert credential == derive_credential(SHA_512, "pencil", salt=b"salt", iterations=4096)
    assert alteration.results == {"alice": None}
    assert alteration.removed == ()


@pytest.mark.parametrize(
    "wish, error, text",
    [
        (upsertion(user=""), UnacceptableCredential, "Username must not be empty"),
        (upsertion(user="", mechanism=0), UnacceptableCredential, "Username must not be empty"),
        (upsertion(mechanism=0), UnknownScramMechanism, "Unknown SCRAM mechanism"),
        (upsertion(mechanism=3, iterations=0), UnknownScramMechanism, "Unknown SCRAM mechanism"),
        (upsertion(iterations=4095), UnacceptableCredential, "Too few iterations"),
        (upsertion(iterations=-1), UnacceptableCredential, "Too few iterations"),
        (upsertion(iterations=16385), UnacceptableCredential, "Too many iterations"),
        (upsertion(salted=b""), UnacceptableCredential, "Salted password must not be empty"),
    ],
)
def test_credentials_that_nobody_may_have_are_refused(
    wish: Upsertion, error: type[Exception], text: str
) -> None:
    alteration = alter(KNOWN, [], [wish, upsertion("dave")])
    refusal = alteration.results[wish.user]
    assert type(refusal) is error
    assert str(refusal) == text
    assert [key.user for key, _ in alteration.written] == ["dave"]


@pytest.mark.parametrize("iterations", [4096, 16384])
def test_the_bounds_of_iterations_are_allowed(iterations: int) -> None:
    assert alter({}, [], [upsertion(iterations=iterations)]).results == {"carol": None}


def test_only_what_is_there_can_be_deleted() -> None:
    alteration = alter(KNOWN, [Deletion("bob", 1), Deletion("alice", 1), Deletion("x", 9)], [])
    assert alteration.removed == (("alice", SHA_256),)
    assert alteration.results["alice"] is None
    assert isinstance(alteration.results["bob"], CredentialNotFound)
    assert isinstance(alteration.results["x"], UnknownScramMechanism)


def test_a_user_is_altered_once_in_a_request_or_not_at_all() -> None:
    alteration = alter(
        KNOWN,
        [Deletion("alice", 1), Deletion("alice", 2), Deletion("bob", 2), Deletion("nobody", 1)],
        [
            upsertion("bob"),
            upsertion("carol", 1),
            upsertion("carol", 2),
            upsertion("carol", 1),
            upsertion("nobody"),
        ],
    )
    assert alteration.removed == ()
    assert alteration.written == ()
    for user in ("alice", "bob", "carol"):
        assert isinstance(alteration.results[user], DuplicateCredential)
    # Its first wish was refused, and that is what it is told.
    assert isinstance(alteration.results["nobody"], CredentialNotFound)


def test_wishes_do_not_show_passwords() -> None:
    wish = upsertion(salted=b"topsecret")
    for text in (repr(wish), repr(alter({}, [], [wish]))):
        assert "topsecret" not in text
        assert "salt" not in text.replace("salted", "")


USERS = st.sampled_from(["alice", "bob", "carol", ""])
CODES = st.integers(0, 3)


@given(
    deletions=st.lists(st.builds(Deletion, USERS, CODES), max_size=6),
    upsertions=st.lists(
        st.builds(upsertion, USERS, CODES, st.sampled_from([4095, 4096, 16384, 16385])), max_size=6
    ),
)
def test_every_user_has_one_result_and_only_granted_wishes_change_anything(
    deletions: list[Deletion], upsertions: list[Upsertion]
) -> None:
    alteration = alter(KNOWN, deletions, upsertions)
    named = [wish.user for wish in deletions] + [wish.user for wish in upsertions]
    assert list(alteration.results) == list(dict.fromkeys(named))
    changed = [key.user for key in alteration.removed] + [key.user for key, _ in alteration.written]
    assert sorted(changed) == sorted(user for user, error in alteration.results.items() if error is None)
    assert all(named.count(user) == 1 for user in changed)
    assert all(key in KNOWN for key in alteration.removed)
