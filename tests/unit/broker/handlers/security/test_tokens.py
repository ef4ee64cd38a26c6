"""Delegation tokens over the wire: every refusal with its code, and what those get who may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.principals import NOBODY, Identity
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from millrace.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from millrace.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from millrace.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.security.people import ALICE, BOB, CAROL
from tests.unit.security.acls.models import acl

DAY_MS = 86_400_000


def create(
    broker: Broker,
    who: Identity = ALICE,
    *,
    owner: str | None = None,
    renewers: tuple[tuple[str, str], ...] = (),
    lifetime_ms: int = -1,
    version: int = 3,
) -> Any:
    request = CreateDelegationTokenRequest(
        owner_principal_type=None if owner is None else "User",
        owner_principal_name=owner,
        renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers],
        max_lifetime_ms=lifetime_ms,
    )
    return broker.ask(request, version, identity=who)


def renew(broker: Broker, hmac: bytes, who: Identity = ALICE, *, period_ms: int = -1) -> Any:
    return broker.ask(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), 2, identity=who)


def expire(broker: Broker, hmac: bytes, who: Identity = ALICE, *, period_ms: int = -1) -> Any:
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return broker.ask(request, 2, identity=who)


def described(broker: Broker, who: Identity, *owners: str, everybody: bool = False) -> list[str]:
    asked = [DescribeDelegationTokenOwner(principal_type="User", principal_name=owner) for owner in owners]
    request = DescribeDelegationTokenRequest(owners=None if everybody else asked)
    response = broker.ask(request, 3, identity=who)
    assert response.error_code == ErrorCode.NONE
    return [token.token_id for token in response.tokens]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_who_asks_gets_a_token_of_their_own(guarded: Broker, version: int) -> None:
    made = create(guarded, renewers=(("User", "bob"),), version=version)
    assert made.error_code == ErrorCode.NONE
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    assert (made.issue_timestamp_ms, made.expiry_timestamp_ms) == (NOW_MS, NOW_MS + DAY_MS)
    assert made.max_timestamp_ms == NOW_MS + 7 * DAY_MS
    assert len(made.hmac) == 64
    assert len(made.token_id) == 22
    if version == 3:
        assert (made.token_requester_principal_type, made.token_requester_principal_name) == ("User", "alice")
    response = guarded.ask(DescribeDelegationTokenRequest(owners=None), version, identity=ALICE)
    (found,) = response.tokens
    assert (found.token_id, found.hmac, found.max_timestamp) == (
        made.token_id,
        made.hmac,
        made.max_timestamp_ms,
    )
    assert [(each.principal_type, each.principal_name) for each in found.renewers] == [("User", "bob")]


@pytest.mark.parametrize("who", [NOBODY, replace(ALICE, is_token=True)])
def test_tokens_are_refused_to_those_who_proved_nothing_and_to_tokens(guarded: Broker, who: Identity) -> None:
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    made = create(guarded, who)
    assert (made.error_code, made.issue_timestamp_ms, made.token_id, made.hmac) == (refused, -1, "", b"")
    assert renew(guarded, b"x", who).error_code == refused
    assert expire(guarded, b"x", who).error_code == refused
    response = guarded.ask(DescribeDelegationTokenRequest(owners=None), 3, identity=who)
    assert (response.error_code, response.tokens) == (refused, [])


def test_without_a_secret_key_there_are_no_tokens(broker: Broker) -> None:
    refused = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    made = create(broker)
    assert (made.error_code, made.principal_name, made.issue_timestamp_ms) == (refused, "alice", 0)
    assert renew(broker, b"x").error_code == refused
    assert expire(broker, b"x").error_code == refused
    assert broker.ask(DescribeDelegationTokenRequest(), 3, identity=ALICE).error_code == refused


def test_a_token_for_another_needs_a_permission_on_that_user(guarded: Broker) -> None:
    made = create(guarded, owner="bob")
    assert made.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    guarded.allow(acl("User:bob", Operation.CREATE_TOKENS, "User:alice", resource_type=ResourceType.USER))
    made = create(guarded, owner="bob")
    assert (made.error_code, made.principal_name) == (ErrorCode.NONE, "bob")
    # It is bob's: who asked for it may not even see it.
    assert described(guarded, ALICE, everybody=True) == []
    assert described(guarded, BOB, everybody=True) == [made.token_id]


def test_renewers_are_users(guarded: Broker) -> None:
    made = create(guarded, renewers=(("User", "bob"), ("Role", "ops")))
    assert made.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_owners_and_renewers_renew_and_end_a_token(guarded: Broker) -> None:
    hmac = create(guarded, renewers=(("User", "bob"),)).hmac
    assert renew(guarded, hmac, BOB, period_ms=5).expiry_timestamp_ms == NOW_MS + 5
    assert expire(guarded, hmac, BOB, period_ms=7).expiry_timestamp_ms == NOW_MS + 7
    for ask in (renew, expire):
        refused = ask(guarded, hmac, CAROL)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert refused.expiry_timestamp_ms == -1
        assert ask(guarded, b"wrong").error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert expire(guarded, hmac).expiry_timestamp_ms == NOW_MS
    assert renew(guarded, hmac).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_what_has_expired_cannot_be_renewed_but_be_removed(guarded: Broker) -> None:
    hmac = create(guarded).hmac
    (token,) = guarded.metadata.image.security.tokens.values()
    guarded.run(guarded.metadata.security.put_token(replace(token, expires_ms=NOW_MS - 1)))
    assert renew(guarded, hmac).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(guarded, hmac, period_ms=5).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(guarded, hmac).error_code == ErrorCode.NONE
    assert len(guarded.metadata.image.security.tokens) == 0


def test_others_tokens_are_seen_by_those_who_may(guarded: Broker) -> None:
    alices, bobs = create(guarded).token_id, create(guarded, BOB).token_id
    assert described(guarded, CAROL, everybody=True) == []
    assert described(guarded, ALICE) == []
    assert described(guarded, ALICE, "alice") == [alices]
    guarded.allow(
        acl(bobs, Operation.DESCRIBE, "User:carol", resource_type=ResourceType.DELEGATION_TOKEN),
    )
    assert described(guarded, CAROL, everybody=True) == [bobs]
    guarded.allow(
        acl("User:alice", Operation.DESCRIBE_TOKENS, "User:carol", resource_type=ResourceType.USER),
    )
    assert described(guarded, CAROL, "alice") == [alices]
    assert sorted(described(guarded, CAROL, everybody=True)) == sorted([alices, bobs])
