"""Folds the store's changes of what belongs to security into its part of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from millrace.metadata.security import records
from millrace.metadata.security.image import SecurityImage
from millrace.metadata.store import KeyChange
from millrace.security.acls.binding import Acl
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.quotas.entities import QuotaEntity
from millrace.security.tenants import Tenant
from millrace.security.tokens import DelegationToken


@dataclass(slots=True)
class _Edits:
    """The changes of a batch, sorted by kind. None stands for what is gone."""

    added_acls: list[Acl] = field(default_factory=list)
    removed_acls: list[Acl] = field(default_factory=list)
    roles: dict[str, Role | None] = field(default_factory=dict)
    quotas: dict[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    credentials: dict[str, Mapping[str, ScramCredential] | None] = field(default_factory=dict)
    tokens: dict[str, DelegationToken | None] = field(default_factory=dict)
    tenants: dict[str, Tenant | None] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def fold_security(image: SecurityImage, changes: Sequence[KeyChange], revision: int) -> SecurityImage:
    """The part of the image after these changes, all of one revision or of everything up to it."""
    edits = _sort(changes)
    changed = replace(image, revisions=image.revisions.updated(edits.revisions, edits.gone))
    if edits.added_acls or edits.removed_acls:
        acls = changed.acls.updated(edits.added_acls, edits.removed_acls)
        changed = replace(changed, acls=acls, access_revision=revision)
    if edits.roles:
        changed = replace(changed, roles=changed.roles.updated(edits.roles), access_revision=revision)
    if edits.quotas:
        changed = replace(changed, quotas=changed.quotas.updated(edits.quotas), quota_revision=revision)
    if edits.credentials:
        users = {user: found for user, found in edits.credentials.items() if found is not None}
        credentials = changed.credentials.updated(users, edits.credentials)
        changed = replace(changed, credentials=credentials, credential_revision=revision)
    if edits.tokens:
        present = {token_id: token for token_id, token in edits.tokens.items() if token is not None}
        tokens = changed.tokens.updated(present, edits.tokens)
        changed = replace(changed, tokens=tokens, credential_revision=revision)
    if edits.tenants:
        changed = _with_tenants(changed, edits.tenants, revision)
    return changed


def _sort(changes: Sequence[KeyChange]) -> _Edits:
    edits = _Edits()
    for key, value, mod_revision in changes:
        if key.startswith(records.ACLS):
            (edits.removed_acls if value is None else edits.added_acls).append(records.acl_of_key(key))
            continue
        if value is None:
            edits.gone.append(key)
        else:
            edits.revisions[key] = mod_revision
        if key.startswith(records.ROLES):
            name = key.removeprefix(records.ROLES)
            edits.roles[name] = None if value is None else records.decode_role(name, value)
        elif key.startswith(records.QUOTAS):
            limits = {} if value is None else records.decode_limits(value)
            edits.quotas[records.entity_of_key(key)] = limits
        elif key.startswith(records.CREDENTIALS):
            edits.credentials[key.removeprefix(records.CREDENTIALS)] = (
                None if value is None else MappingProxyType(records.decode_credentials(value))
            )
        elif key.startswith(records.TOKENS):
            token_id = key.removeprefix(records.TOKENS)
            edits.tokens[token_id] = None if value is None else records.decode_token(token_id, value)
        elif key != records.TENANT_GUARD_KEY:
            name = key.removeprefix(records.TENANTS)
            edits.tenants[name] = None if value is None else records.decode_tenant(name, value)
    return edits


def _with_tenants(image: SecurityImage, changes: Mapping[str, Tenant | None], revision: int) -> SecurityImage:
    """The image with changed tenants and with the permissions and quotas that they stand for, of which no two
    tenants share any."""
    before = [tenant for name in changes if (tenant := image.tenants.tenants.get(name)) is not None]
    after = [tenant for tenant in changes.values() if tenant is not None]
    quotas = {tenant.quotas()[0]: dict[str, float]() for tenant in before}
    quotas.update(tenant.quotas() for tenant in after)
    return replace(
        image,
        tenants=image.tenants.updated(changes),
        tenant_acls=image.tenant_acls.updated(
            [acl for tenant in after for acl in tenant.acls()],
            [acl for tenant in before for acl in tenant.acls()],
        ),
        quotas=image.quotas.updated(quotas),
        access_revision=revision,
        quota_revision=revision,
    )
