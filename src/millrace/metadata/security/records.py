"""The keys of the store for what belongs to security, and the bytes under them. A record is JSON.

A permission is its key alone: there may be a hundred thousand, each comes and goes by itself, and whoever
sets one that is there changes nothing. All others are records that are compared with what a decision was
based on.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import orjson

from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType, known
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.principals import Principal, parse_principal
from millrace.security.quotas.entities import QuotaEntity
from millrace.security.tenants import Tenant, TenantLimits, WhenFull
from millrace.security.tokens import DelegationToken

ACLS: Final = "acls/"
ROLES: Final = "roles/"
QUOTAS: Final = "quotas/"
CREDENTIALS: Final = "credentials/"
TOKENS: Final = "tokens/"
TENANTS: Final = "tenants/"
PREFIXES: Final = (ACLS, ROLES, QUOTAS, CREDENTIALS, TOKENS, TENANTS)

TENANT_GUARD_KEY: Final = "tenants/"
"""Written with every change of a tenant: no two may take names of each other at the same time. No tenant has
an empty name."""

PERMISSION: Final = b"{}"
"""The value of every permission."""


def acl_key(acl: Acl) -> str:
    return ACLS + orjson.dumps(list(acl)).decode()


def acl_of_key(key: str) -> Acl:
    """What a newer broker may have written and we do not know matches nothing."""
    kind, name, pattern, principal, host, operation, permission = orjson.loads(key.removeprefix(ACLS))
    return Acl(
        known(ResourceType, kind),
        name,
        known(PatternType, pattern),
        # Thousands of permissions name the same few.
        sys.intern(principal),
        sys.intern(host),
        known(Operation, operation),
        known(Permission, permission),
    )


def role_key(name: str) -> str:
    return ROLES + name


def encode_role(role: Role) -> bytes:
    return orjson.dumps({"members": role.members})


def decode_role(name: str, value: bytes) -> Role:
    return Role(name, tuple(orjson.loads(value)["members"]))


def quota_key(entity: QuotaEntity) -> str:
    return QUOTAS + orjson.dumps(entity.parts).decode()


def entity_of_key(key: str) -> QuotaEntity:
    return QuotaEntity(tuple((kind, name) for kind, name in orjson.loads(key.removeprefix(QUOTAS))))


def encode_limits(limits: Mapping[str, float]) -> bytes:
    return orjson.dumps(dict(limits))


def decode_limits(value: bytes) -> dict[str, float]:
    limits: dict[str, float] = orjson.loads(value)
    return limits


def credentials_key(user: str) -> str:
    return CREDENTIALS + user


def encode_credentials(credentials: Mapping[str, ScramCredential]) -> bytes:
    return orjson.dumps(
        {
            mechanism: {
                "salt": b64encode(keys.salt).decode(),
                "stored_key": b64encode(keys.stored_key).decode(),
                "server_key": b64encode(keys.server_key).decode(),
                "iterations": keys.iterations,
            }
            for mechanism, keys in credentials.items()
        }
    )


def decode_credentials(value: bytes) -> dict[str, ScramCredential]:
    return {
        mechanism: ScramCredential(
            b64decode(keys["salt"]),
            b64decode(keys["stored_key"]),
            b64decode(keys["server_key"]),
            keys["iterations"],
        )
        for mechanism, keys in orjson.loads(value).items()
    }


def token_key(token_id: str) -> str:
    return TOKENS + token_id


def encode_token(token: DelegationToken) -> bytes:
    return orjson.dumps(
        {
            "owner": str(token.owner),
            "requester": str(token.requester),
            "renewers": [str(renewer) for renewer in token.renewers],
            "issued": token.issued_ms,
            "expires": token.expires_ms,
            "ends": token.ends_ms,
        }
    )


def decode_token(token_id: str, value: bytes) -> DelegationToken:
    record = orjson.loads(value)
    renewers: tuple[Principal, ...] = tuple(parse_principal(renewer) for renewer in record["renewers"])
    return DelegationToken(
        token_id=token_id,
        owner=parse_principal(record["owner"]),
        requester=parse_principal(record["requester"]),
        renewers=renewers,
        issued_ms=record["issued"],
        expires_ms=record["expires"],
        ends_ms=record["ends"],
    )


def tenant_key(name: str) -> str:
    return TENANTS + name


def encode_tenant(tenant: Tenant) -> bytes:
    record: dict[str, Any] = {
        "prefix": tenant.prefix,
        "administrators": tenant.administrators,
        "members": tenant.members,
        "limits": {name: bound for name, bound in tenant.limits._asdict().items() if bound is not None},
        "when_full": tenant.when_full.value,
    }
    return orjson.dumps(record)


def decode_tenant(name: str, value: bytes) -> Tenant:
    record = orjson.loads(value)
    limits = record.get("limits", {})
    return Tenant(
        name=name,
        prefix=record["prefix"],
        administrators=tuple(record["administrators"]),
        members=tuple(record["members"]),
        # A limit that a newer broker knows means nothing to us.
        limits=TenantLimits(**{kind: limits[kind] for kind in TenantLimits._fields if kind in limits}),
        when_full=WhenFull(record.get("when_full", WhenFull.HOLD)),
    )
