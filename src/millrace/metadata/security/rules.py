"""The rules for changing what belongs to security: a command and an image in, the change to write out. No
I/O.

Whoever commits a change decides again on a conflict. Permissions are the exception: to set or remove one
depends on nothing else, so nothing is compared.
"""

from __future__ import annotations

from millrace.metadata.commands import Change
from millrace.metadata.errors import (
    InvalidSecurityChange,
    RoleExists,
    TenantExists,
    TokenExists,
    UnknownCredential,
    UnknownRole,
    UnknownTenant,
    UnknownToken,
)
from millrace.metadata.security import records
from millrace.metadata.security.commands import (
    AlterCredentials,
    AlterQuota,
    AlterRole,
    AlterTenant,
    ChangeMembers,
    CreateAcls,
    CreateRole,
    DeleteAcls,
    DeleteRole,
    DeleteTenant,
    PutTenant,
    PutToken,
    RemoveToken,
    SecurityCommand,
)
from millrace.metadata.security.config_alterations import altered_role, altered_tenant
from millrace.metadata.security.image import SecurityImage
from millrace.metadata.store import ABSENT, Compare, Put
from millrace.security.acls.roles import InvalidRole, Role, check_role
from millrace.security.quotas.entities import InvalidQuota
from millrace.security.quotas.keys import altered_limits
from millrace.security.tenants import InvalidTenant


def decide_security(image: SecurityImage, command: SecurityCommand) -> Change:
    """What has to be written for the command, or an error of metadata.errors. Changes nothing."""
    match command:
        case CreateAcls(acls):
            new = dict.fromkeys(acl for acl in acls if acl not in image.acls)
            return Change(puts=tuple(Put(records.acl_key(acl), records.PERMISSION) for acl in new))
        case DeleteAcls(acls):
            present = dict.fromkeys(acl for acl in acls if acl in image.acls)
            return Change(deletes=tuple(records.acl_key(acl) for acl in present))
        case CreateRole(role):
            if role.name in image.roles.roles:
                raise RoleExists(role.name)
            return _write_role(image, role)
        case ChangeMembers():
            return _change_members(image, command)
        case DeleteRole(name):
            if name not in image.roles.roles:
                raise UnknownRole(name)
            return _deleted(image, records.role_key(name))
        case AlterRole(name, alterations):
            before = image.roles.roles.get(name)
            after = altered_role(name, before, alterations)
            if after == before:
                return Change()
            return _deleted(image, records.role_key(name)) if after is None else _write_role(image, after)
        case AlterQuota():
            return _alter_quota(image, command)
        case AlterCredentials():
            return _alter_credentials(image, command)
        case PutToken():
            return _put_token(image, command)
        case RemoveToken(token_id):
            return _deleted(image, records.token_key(token_id))
        case PutTenant():
            return _put_tenant(image, command)
        case AlterTenant():
            return _alter_tenant(image, command)
        case DeleteTenant(name):
            if name not in image.tenants.tenants:
                raise UnknownTenant(name)
            return _deleted(image, records.tenant_key(name))


def _write_role(image: SecurityImage, role: Role) -> Change:
    try:
        check_role(role)
    except InvalidRole as error:
        raise InvalidSecurityChange(str(error)) from error
    return _written(image, records.role_key(role.name), records.encode_role(role))


def _change_members(image: SecurityImage, command: ChangeMembers) -> Change:
    role = image.roles.roles.get(command.role)
    if role is None:
        raise UnknownRole(command.role)
    members = dict.fromkeys(role.members)
    members.update(dict.fromkeys(command.added))
    for member in command.removed:
        members.pop(member, None)
    changed = Role(role.name, tuple(members))
    return Change() if changed == role else _write_role(image, changed)


def _alter_quota(image: SecurityImage, command: AlterQuota) -> Change:
    present = image.quotas.of(command.entity)
    try:
        limits = altered_limits(command.entity, present, command.alterations)
    except InvalidQuota as error:
        raise InvalidSecurityChange(str(error)) from error
    if limits == present:
        return Change()
    key = records.quota_key(command.entity)
    return _written(image, key, records.encode_limits(limits)) if limits else _deleted(image, key)


def _alter_credentials(image: SecurityImage, command: AlterCredentials) -> Change:
    credentials = dict(image.credentials.get(command.user, {}))
    for mechanism in command.removed:
        if credentials.pop(mechanism, None) is None:
            raise UnknownCredential(command.user, mechanism)
    credentials.update(command.written)
    key = records.credentials_key(command.user)
    if not credentials:
        return _deleted(image, key)
    return _written(image, key, records.encode_credentials(credentials))


def _put_token(image: SecurityImage, command: PutToken) -> Change:
    token = command.token
    is_there = token.token_id in image.tokens
    if command.is_new and is_there:
        raise TokenExists(token.token_id)
    if not command.is_new and not is_there:
        raise UnknownToken(token.token_id)
    return _written(image, records.token_key(token.token_id), records.encode_token(token))


def _put_tenant(image: SecurityImage, command: PutTenant) -> Change:
    tenant = command.tenant
    is_there = tenant.name in image.tenants.tenants
    if command.is_new and is_there:
        raise TenantExists(tenant.name)
    if not command.is_new and not is_there:
        raise UnknownTenant(tenant.name)
    try:
        image.tenants.check(tenant)
    except InvalidTenant as error:
        raise InvalidSecurityChange(str(error)) from error
    change = _written(image, records.tenant_key(tenant.name), records.encode_tenant(tenant))
    guard = records.TENANT_GUARD_KEY
    return Change(
        compares=(*change.compares, Compare(guard, image.revisions.get(guard, ABSENT))),
        puts=(*change.puts, Put(guard, b"{}")),
    )


def _alter_tenant(image: SecurityImage, command: AlterTenant) -> Change:
    before = image.tenants.tenants.get(command.name)
    after = altered_tenant(command.name, before, command.alterations)
    if after == before:
        return Change()
    if after is None:
        return _deleted(image, records.tenant_key(command.name))
    return _put_tenant(image, PutTenant(after, is_new=before is None))


def _written(image: SecurityImage, key: str, value: bytes) -> Change:
    return Change(compares=(Compare(key, image.revisions.get(key, ABSENT)),), puts=(Put(key, value),))


def _deleted(image: SecurityImage, key: str) -> Change:
    revision = image.revisions.get(key)
    return Change() if revision is None else Change(compares=(Compare(key, revision),), deletes=(key,))
