"""Quotas over the wire: match types, what does not go together, trials, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.security.acls.binding import Operation
from millrace.security.principals import Identity
from millrace.security.tenants import Tenant, TenantLimits
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from millrace.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.security.people import ALICE, ROOT, on_cluster

RATE = "producer_byte_rate"
EXACT, DEFAULT, ANY = 0, 1, 2
Parts = dict[str, str | None]


def entry(parts: Parts, **limits: float | None) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[
            AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
            for kind, name in parts.items()
        ],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()],
    )


def alter(
    broker: Broker,
    *entries: AlterClientQuotasRequestEntryData,
    who: Identity = ROOT,
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    response = broker.ask(request, 1, identity=who)
    for asked, answered in zip(entries, response.entries, strict=True):
        assert [(part.entity_type, part.entity_name) for part in answered.entity] == [
            (part.entity_type, part.entity_name) for part in asked.entity
        ]
    return [(answered.error_code, answered.error_message) for answered in response.entries]


def ask(broker: Broker, *components: ComponentData, strict: bool = False, version: int = 1) -> Any:
    request = DescribeClientQuotasRequest(components=list(components), strict=strict)
    return broker.ask(request, version, identity=ROOT)


def described(broker: Broker, *components: ComponentData, strict: bool = False) -> list[Parts]:
    response = ask(broker, *components, strict=strict)
    assert response.error_code == ErrorCode.NONE
    found = [{part.entity_type: part.entity_name for part in entry.entity} for entry in response.entries]
    return sorted(found, key=str)


@pytest.mark.parametrize("version", [0, 1])
def test_limits_are_set_shown_and_taken_away(guarded: Broker, version: int) -> None:
    assert alter(guarded, entry({"user": "alice"}, **{RATE: 1000.0, "request_percentage": 12.5})) == [
        (0, None)
    ]
    (found,) = ask(guarded, version=version).entries
    assert {value.key: value.value for value in found.values} == {RATE: 1000.0, "request_percentage": 12.5}
    assert alter(guarded, entry({"user": "alice"}, **{RATE: None, "request_percentage": None})) == [(0, None)]
    assert ask(guarded).entries == []


def test_entities_are_found_by_match_type_and_strictly(guarded: Broker) -> None:
    entities: list[Parts] = [
        {"user": "alice"},
        {"user": None},
        {"user": "alice", "client-id": "c"},
        {"client-id": "c"},
    ]
    outcomes = alter(guarded, *(entry(parts, **{RATE: 5.0}) for parts in entities))
    assert outcomes == [(0, None)] * 4
    alice = ComponentData(entity_type="user", match_type=EXACT, match="alice")
    assert described(guarded, alice) == [entities[2], entities[0]]
    assert described(guarded, alice, strict=True) == [entities[0]]
    default = ComponentData(entity_type="user", match_type=DEFAULT, match=None)
    assert described(guarded, default) == [entities[1]]
    anybody = ComponentData(entity_type="user", match_type=ANY, match=None)
    assert len(described(guarded, anybody)) == 3
    assert len(described(guarded)) == 4


@pytest.mark.parametrize(
    "components, code",
    [
        ([("team", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_questions_that_make_no_sense(
    guarded: Broker, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    response = ask(
        guarded,
        *(ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components),
    )
    assert (response.error_code, response.entries) == (code, None)
    assert response.error_message


def test_each_entity_has_an_outcome_of_its_own(guarded: Broker) -> None:
    outcomes = alter(
        guarded,
        entry({"user": "good"}, **{RATE: 5.0}),
        entry({"user": "a"}, **{RATE: 0.0}),
        entry({"user": "b"}, **{RATE: 1.5}),
        entry({"user": "c"}, nothing=1.0),
        entry({"user": "d", "ip": "127.0.0.1"}, connection_creation_rate=1.0),
        entry({"ip": "not an address"}, connection_creation_rate=1.0),
        entry({"team": "x"}, **{RATE: 1.0}),
        entry({"tenant": "x"}, **{RATE: 1.0}),
        entry({}, **{RATE: 1.0}),
        entry({"user": "good"}, **{RATE: 6.0}),
    )
    assert [code for code, _ in outcomes] == [ErrorCode.NONE, *[ErrorCode.INVALID_REQUEST] * 9]
    assert described(guarded) == [{"user": "good"}]


def test_a_trial_changes_nothing_and_says_what_would_be_wrong(guarded: Broker) -> None:
    outcomes = alter(
        guarded,
        entry({"user": "a"}, **{RATE: 5.0}),
        entry({"user": "b"}, **{RATE: -1.0}),
        validate_only=True,
    )
    assert [code for code, _ in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert described(guarded) == []


def test_limits_of_tenants_are_shown_to_those_who_ask_for_them(guarded: Broker) -> None:
    tenant = Tenant(name="t", prefix="t.", limits=TenantLimits(bytes_in_per_s=7))
    guarded.run(guarded.metadata.security.put_tenant(tenant, is_new=True))
    assert described(guarded) == []
    assert described(guarded, ComponentData(entity_type="tenant", match_type=ANY, match=None)) == [
        {"tenant": "t"}
    ]


def test_who_may_not_learns_and_changes_nothing(guarded: Broker) -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert alter(guarded, entry({"user": "a"}, **{RATE: 5.0}), who=ALICE) == [(refused, refused.message)]
    response = guarded.ask(DescribeClientQuotasRequest(), 1, identity=ALICE)
    assert (response.error_code, response.entries) == (refused, None)
    guarded.allow(on_cluster(Operation.ALTER_CONFIGS))
    # Who may alter may describe.
    assert alter(guarded, entry({"user": "a"}, **{RATE: 5.0}), who=ALICE) == [(0, None)]
    assert guarded.ask(DescribeClientQuotasRequest(), 1, identity=ALICE).error_code == ErrorCode.NONE
