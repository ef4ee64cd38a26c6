"""Changes of what belongs to security: what is written, what is compared, what is refused. Images are equal
whether they came about step by step or at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.metadata.commands import Command, Policy
from millrace.metadata.controller import decide
from millrace.metadata.errors import (
    InvalidSecurityChange,
    MetadataError,
    RoleExists,
    TenantExists,
    TokenExists,
    UnknownCredential,
    UnknownRole,
    UnknownTenant,
    UnknownToken,
)
from millrace.metadata.fold import fold, image_of
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.security import records
from millrace.metadata.security.commands import (
    AlterCredentials,
    AlterQuota,
    ChangeMembers,
    CreateAcls,
    CreateRole,
    DeleteAcls,
    DeleteRole,
    DeleteTenant,
    PutTenant,
    PutToken,
    RemoveToken,
)
from millrace.metadata.store import ABSENT, ChangeBatch, Compare, KeyChange, Snapshot, Versioned
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.principals import user
from millrace.security.quotas.entities import entity
from millrace.security.quotas.keys import Alteration
from millrace.security.tenants import Tenant, TenantLimits
from millrace.security.tokens import DelegationToken
from tests.unit.metadata.worlds import apply
from tests.unit.security.acls import models
from tests.unit.security.acls.models import acl

KEYS = ScramCredential(b"s", b"k", b"v", 4_096)
ME = entity(user="me")
RATE = "producer_byte_rate"
TEAM = Tenant(name="team", prefix="team.", members=("User:a",), limits=TenantLimits(bytes_in_per_s=5))


def token(token_id: str = "t", expires_ms: int = 5) -> DelegationToken:
    return DelegationToken(
        token_id=token_id,
        owner=user("me"),
        requester=user("me"),
        issued_ms=1,
        expires_ms=expires_ms,
        ends_ms=9,
    )


def refused(image: Image, command: Command) -> MetadataError:
    with pytest.raises(MetadataError) as raised:
        decide(image, command, Policy())
    return raised.value


def test_permissions_are_written_once_and_depend_on_nothing() -> None:
    image = apply(EMPTY, CreateAcls([acl("a"), acl("b"), acl("a")]))
    assert set(image.security.acls) == {acl("a"), acl("b")}
    change = decide(image, CreateAcls([acl("a"), acl("c")]), Policy())
    assert [put.key for put in change.puts] == [records.acl_key(acl("c"))]
    assert change.compares == ()
    assert decide(image, CreateAcls([acl("a")]), Policy()).is_empty
    assert decide(image, DeleteAcls([acl("x")]), Policy()).is_empty
    assert set(apply(image, DeleteAcls([acl("a"), acl("x")])).security.acls) == {acl("b")}


def test_a_role_is_made_given_taken_and_deleted() -> None:
    image = apply(EMPTY, CreateRole(Role("r", ("User:a",))))
    assert isinstance(refused(image, CreateRole(Role("r", ()))), RoleExists)
    change = decide(image, ChangeMembers(role="r", added=["User:b"]), Policy())
    assert change.compares == (Compare(records.role_key("r"), image.revision),)
    assert decide(image, ChangeMembers(role="r", added=["User:a"], removed=["User:x"]), Policy()).is_empty
    image = apply(image, ChangeMembers(role="r", added=["User:b", "Group:g"], removed=["User:a"]))
    assert image.security.roles.roles["r"] == Role("r", ("User:b", "Group:g"))
    assert isinstance(refused(image, ChangeMembers(role="r", added=["Role:x"])), InvalidSecurityChange)
    assert isinstance(refused(image, ChangeMembers(role="x")), UnknownRole)
    image = apply(image, DeleteRole("r"))
    assert len(image.security.roles) == 0
    assert isinstance(refused(image, DeleteRole("r")), UnknownRole)


def test_quotas_are_altered_key_by_key() -> None:
    image = apply(EMPTY, AlterQuota(ME, [Alteration(RATE, 5.0), Alteration("request_percentage", 2.0)]))
    image = apply(image, AlterQuota(ME, [Alteration(RATE, None)]))
    assert image.security.quotas.of(ME) == {"request_percentage": 2.0}
    assert decide(image, AlterQuota(ME, [Alteration("request_percentage", 2.0)]), Policy()).is_empty
    assert isinstance(refused(image, AlterQuota(ME, [Alteration("x", 1.0)])), InvalidSecurityChange)
    image = apply(image, AlterQuota(ME, [Alteration("request_percentage", None)]))
    assert len(image.security.quotas) == 0
    assert len(image.security.revisions) == 0


def test_credentials_are_set_and_removed_by_mechanism() -> None:
    both = {"SCRAM-SHA-256": KEYS, "SCRAM-SHA-512": KEYS}
    image = apply(EMPTY, AlterCredentials(user="me", written=both))
    image = apply(image, AlterCredentials(user="me", removed=["SCRAM-SHA-256"]))
    assert image.security.credentials["me"] == {"SCRAM-SHA-512": KEYS}
    error = refused(image, AlterCredentials(user="me", removed=["SCRAM-SHA-256"]))
    assert isinstance(error, UnknownCredential)
    image = apply(image, AlterCredentials(user="me", removed=["SCRAM-SHA-512"]))
    assert "me" not in image.security.credentials


def test_a_token_is_made_changed_and_removed() -> None:
    image = apply(EMPTY, PutToken(token(), is_new=True))
    assert isinstance(refused(image, PutToken(token(), is_new=True)), TokenExists)
    image = apply(image, PutToken(token(expires_ms=7)))
    assert image.security.tokens["t"].expires_ms == 7
    image = apply(image, RemoveToken("t"))
    assert isinstance(refused(image, PutToken(token())), UnknownToken)
    assert decide(image, RemoveToken("t"), Policy()).is_empty


def test_a_tenant_comes_with_what_it_stands_for_and_goes_with_it() -> None:
    image = apply(EMPTY, CreateAcls([*TEAM.acls()][:1]), PutTenant(TEAM, is_new=True))
    assert set(image.security.tenant_acls) == set(TEAM.acls())
    assert image.security.quotas.of(entity(tenant="team")) == {RATE: 5.0}
    assert isinstance(refused(image, PutTenant(TEAM, is_new=True)), TenantExists)
    assert isinstance(refused(image, PutTenant(replace(TEAM, name="x"))), UnknownTenant)
    other = Tenant(name="x", prefix="team.x.")
    assert isinstance(refused(image, PutTenant(other, is_new=True)), InvalidSecurityChange)

    image = apply(image, PutTenant(replace(TEAM, members=("User:b",), limits=TenantLimits())))
    assert {found.principal for found in image.security.tenant_acls} == {"User:b"}
    assert len(image.security.quotas) == 0
    image = apply(image, DeleteTenant("team"))
    assert len(image.security.tenant_acls) == 0
    assert len(image.security.acls) == 1, "what somebody has set stays"
    assert isinstance(refused(image, DeleteTenant("team")), UnknownTenant)


def test_two_tenants_made_at_the_same_time_are_compared() -> None:
    """By a key that both write: each is sound beside those that its broker knows."""
    guard = records.TENANT_GUARD_KEY
    assert Compare(guard, ABSENT) in decide(EMPTY, PutTenant(TEAM, is_new=True), Policy()).compares
    image = apply(EMPTY, PutTenant(TEAM, is_new=True))
    other = decide(image, PutTenant(Tenant(name="x", prefix="x."), is_new=True), Policy())
    assert Compare(guard, image.revision) in other.compares


def test_each_kind_of_change_moves_the_revision_of_those_who_remember_it() -> None:
    def revisions(command: Command) -> tuple[int, int, int]:
        security = apply(image, command).security
        return security.access_revision, security.quota_revision, security.credential_revision

    image = replace(EMPTY, revision=10)
    assert revisions(CreateAcls([acl("a")])) == (11, 0, 0)
    assert revisions(CreateRole(Role("r", ()))) == (11, 0, 0)
    assert revisions(AlterQuota(ME, [Alteration(RATE, 5.0)])) == (0, 11, 0)
    assert revisions(AlterCredentials(user="me", written={"SCRAM-SHA-256": KEYS})) == (0, 0, 11)
    assert revisions(PutToken(token(), is_new=True)) == (0, 0, 11)
    assert revisions(PutTenant(TEAM, is_new=True)) == (11, 11, 0)
    reloaded = image_of(Snapshot(20, {})).security
    assert (reloaded.access_revision, reloaded.credential_revision) == (20, 20), "what was remembered is old"


NAMES = st.sampled_from(["a", "b"])
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateAcls, st.lists(models.acls, max_size=4)),
    st.builds(DeleteAcls, st.lists(models.acls, max_size=4)),
    st.builds(lambda name: CreateRole(Role(name, ("User:a",))), NAMES),
    st.builds(lambda name, member: ChangeMembers(role=name, added=[f"User:{member}"]), NAMES, NAMES),
    st.builds(DeleteRole, NAMES),
    st.builds(
        lambda name, value: AlterQuota(entity(user=name), [Alteration(RATE, value)]),
        NAMES,
        st.sampled_from([None, 1.0, 2.0]),
    ),
    st.builds(lambda name: AlterCredentials(user=name, written={"SCRAM-SHA-256": KEYS}), NAMES),
    st.builds(lambda name: AlterCredentials(user=name, removed=["SCRAM-SHA-256"]), NAMES),
    st.builds(lambda name, is_new: PutToken(token(name), is_new), NAMES, st.booleans()),
    st.builds(RemoveToken, NAMES),
    st.builds(
        lambda name, member, is_new: PutTenant(
            replace(TEAM, name=name, prefix=f"{name}.", members=(f"User:{name}{member}",)), is_new
        ),
        NAMES,
        NAMES,
        st.booleans(),
    ),
    st.builds(DeleteTenant, NAMES),
)


@settings(max_examples=60)
@given(st.lists(COMMANDS, max_size=20))
def test_live_and_reloaded_images_are_equal(commands: list[Command]) -> None:
    image, entries = EMPTY, dict[str, Versioned]()
    for command in commands:
        try:
            change = decide(image, command, Policy())
        except MetadataError:
            continue
        revision = image.revision + 1
        for compare in change.compares:
            present = entries.get(compare.key)
            assert compare.mod_revision == (ABSENT if present is None else present.mod_revision)
        changes = [KeyChange(put.key, put.value, revision) for put in change.puts]
        changes += [KeyChange(key, None, revision) for key in change.deletes]
        for key, value, _ in changes:
            if value is None:
                del entries[key]
            else:
                entries[key] = Versioned(value, revision)
        image = fold(image, ChangeBatch(revision, tuple(changes)))
    reloaded = image_of(Snapshot(image.revision, entries)).security
    assert reloaded == image.security
