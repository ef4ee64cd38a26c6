"""Records of security: what is written is read back, and no name runs into another's key."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from millrace.metadata.security import records
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.principals import Principal, user
from millrace.security.quotas.entities import QuotaEntity, entity
from millrace.security.tenants import Tenant, TenantLimits, WhenFull
from millrace.security.tokens import DelegationToken

texts = st.text(st.characters(codec="utf-8"), max_size=8)
acls = st.builds(
    Acl,
    resource_type=st.sampled_from(ResourceType),
    name=texts,
    pattern=st.sampled_from(PatternType),
    principal=texts,
    host=texts,
    operation=st.sampled_from(Operation),
    permission=st.sampled_from(Permission),
)


@given(acls, acls)
def test_a_permission_is_its_key(one: Acl, other: Acl) -> None:
    assert records.acl_of_key(records.acl_key(one)) == one
    assert (records.acl_key(one) == records.acl_key(other)) == (one == other)


def test_a_permission_of_a_newer_broker_matches_nothing() -> None:
    key = records.ACLS + orjson.dumps([2, "t", 3, "User:a", "*", 99, 9]).decode()
    found = records.acl_of_key(key)
    assert (found.operation, found.permission) == (Operation.UNKNOWN, Permission.UNKNOWN)


@given(st.lists(st.tuples(st.sampled_from(["user", "client-id"]), st.none() | texts), max_size=2))
def test_an_entity_is_its_key(parts: list[tuple[str, str | None]]) -> None:
    whom = QuotaEntity(tuple(parts))
    assert records.entity_of_key(records.quota_key(whom)) == whom


@given(st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3))
def test_limits_come_back(limits: dict[str, float]) -> None:
    assert records.decode_limits(records.encode_limits(limits)) == limits


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_credentials_come_back(salt: bytes, key: bytes) -> None:
    credentials = {"SCRAM-SHA-256": ScramCredential(salt, key, salt + key, 4_096)}
    assert records.decode_credentials(records.encode_credentials(credentials)) == credentials


def test_credentials_are_not_shown() -> None:
    assert repr(ScramCredential(b"salt", b"stored", b"server", 4_096)) == "ScramCredential(iterations=4096)"


def test_roles_tokens_and_tenants_come_back() -> None:
    role = Role("r", ("User:a", "Group:b:c"))
    assert records.decode_role("r", records.encode_role(role)) == role
    token = DelegationToken(
        token_id="t",
        owner=user("a:b"),
        requester=Principal("Service", "x"),
        renewers=(user("c"),),
        issued_ms=1,
        expires_ms=2,
        ends_ms=3,
    )
    assert records.decode_token("t", records.encode_token(token)) == token
    tenant = Tenant(
        name="n",
        prefix="n.",
        administrators=("User:a",),
        members=("User:b",),
        limits=TenantLimits(partitions=3, request_percentage=1.5),
        when_full=WhenFull.REJECT,
    )
    assert records.decode_tenant("n", records.encode_tenant(tenant)) == tenant
    assert entity(tenant="n") == tenant.quotas()[0]


def test_what_another_version_wrote_is_read_as_far_as_it_is_known() -> None:
    newer = {"prefix": "n.", "administrators": [], "members": [], "limits": {"topics": 3, "partitions": 2}}
    assert records.decode_tenant("n", orjson.dumps(newer)) == Tenant(
        name="n", prefix="n.", limits=TenantLimits(partitions=2)
    )
