"""Passwords in the clear are checked against the configuration or the SCRAM store, and not shown."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.credentials.passwords import ConfiguredUsers, PasswordWork, StoredUsers
from millrace.security.credentials.scram import (
    Decoys,
    ScramCredential,
    ScramMechanism,
    derive_credential,
    is_password,
)
from millrace.sim.handover import Handover

SHA_256, SHA_512 = ScramMechanism
DECOYS = Decoys(b"key")


@given(st.dictionaries(st.text(), st.text()), st.text(), st.text())
def test_only_the_configured_password_of_a_configured_user_counts(
    users: dict[str, str], name: str, password: str
) -> None:
    configured = ConfiguredUsers(users)
    assert configured.check(name, password) == (users.get(name) == password)
    assert all(configured.check(user, right) for user, right in users.items())


def test_configured_users_do_not_show_passwords() -> None:
    configured = ConfiguredUsers({"alice": "topsecret"})
    assert "topsecret" not in repr(configured)
    assert "topsecret" not in repr(vars(configured))


def _stored(**mechanisms: ScramMechanism) -> StoredUsers:
    """Users whose password is the name of their mechanism."""
    credentials = {
        (mechanism, user): derive_credential(mechanism, mechanism.name, salt=b"salt", iterations=4096)
        for user, mechanism in mechanisms.items()
    }
    return StoredUsers(lambda mechanism, user: credentials.get((mechanism, user)), DECOYS)


def test_a_stored_credential_checks_a_password_in_the_clear() -> None:
    users = _stored(alice=SHA_256, bob=SHA_512)
    assert users.check("alice", "SHA_256")()
    assert users.check("bob", "SHA_512")()
    assert not users.check("alice", "SHA_512")()
    assert not users.check("alice", "")()


def test_the_stronger_of_two_credentials_counts() -> None:
    weak = derive_credential(SHA_256, "old", salt=b"salt", iterations=4096)
    strong = derive_credential(SHA_512, "new", salt=b"salt", iterations=4096)
    users = StoredUsers(lambda mechanism, _: weak if mechanism is SHA_256 else strong, DECOYS)
    assert users.check("alice", "new")()
    assert not users.check("alice", "old")()


def test_an_unknown_user_costs_the_same_work_and_fails() -> None:
    users = _stored()
    work = users.check("nobody", "x")
    assert isinstance(work, PasswordWork)
    assert work.credential.iterations == 4096
    assert len(work.credential.stored_key) == (32 if work.mechanism is SHA_256 else 64)
    assert not work()
    assert users.check("nobody", "x") == work


def test_unknown_users_are_not_told_by_the_mechanism_that_is_tried() -> None:
    users = _stored()
    tried = {users.check(f"user{number}", "x").mechanism for number in range(40)}
    assert tried == {SHA_256, SHA_512}


@pytest.mark.parametrize("find", [lambda *_: None, lambda *_: ScramCredential(b"s", b"k", b"k", 4096)])
def test_work_does_not_show_the_password(find: object) -> None:
    work = StoredUsers(find, DECOYS).check("alice", "topsecret")  # type: ignore[arg-type]
    assert "topsecret" not in repr(work)
    assert "topsecret" not in str(work)
    # And it shares nothing with the loop.
    Handover(work, ())


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault S10."""
    compared: list[bool] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(real(one, other))
        return compared[-1]

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    users = ConfiguredUsers({"alice": "secret"})
    assert users.check("alice", "secret")
    assert not users.check("alice", "secres")
    assert not users.check("nobody", "secret")
    assert compared == [True, False, False]
    credential = derive_credential(SHA_256, "secret", salt=b"salt", iterations=4096)
    assert is_password(SHA_256, credential, "secret")
    assert not is_password(SHA_256, credential, "secres")
    assert compared[3:] == [True, False]
