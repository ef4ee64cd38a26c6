"""The rules for changing roles and tenants by settings, as IncrementalAlterConfigs does. No I/O.

Each is changed as a whole or not at all, from what it is at the moment of the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from millrace.metadata.commands import Alteration, AlterOperation
from millrace.metadata.config_definitions.model import ConfigType, Setting, format_value, unknown_name
from millrace.metadata.errors import ContradictoryRequest, InvalidConfig, UnknownRole, UnknownTenant
from millrace.security.acls.roles import Role
from millrace.security.config_resources import (
    ADMINISTRATORS,
    LIMITS,
    LISTS,
    MEMBERS,
    PREFIX,
    ROLE_SETTINGS,
    TENANT_SETTINGS,
    WHEN_FULL,
    joined,
    split,
)
from millrace.security.tenants import Tenant, TenantLimits, WhenFull

_REMOVES: Final = AlterOperation.DELETE
LIMIT_TYPES: Final = {
    name: ConfigType.DOUBLE if field == "request_percentage" else ConfigType.LONG
    for name, field in LIMITS.items()
}


def altered_role(name: str, present: Role | None, alterations: Sequence[Alteration]) -> Role | None:
    """The role after the alterations, None if it is gone. `present` is None if there is none.

    To set the members makes the role, to delete them removes it; more members can be given to a role that is
    there, so that nobody makes one by misspelling another. Raises UnknownRole and what is wrong with them."""
    _check_names(alterations, ROLE_SETTINGS, "role")
    for _, operation, value in alterations:
        if operation is AlterOperation.SET:
            return Role(name, _principals(_value(MEMBERS, value)))
        if present is None:
            raise UnknownRole(name)
        return None if operation is _REMOVES else Role(name, _changed(present.members, operation, value))
    if present is None:
        raise UnknownRole(name)
    return present


def altered_tenant(name: str, present: Tenant | None, alterations: Sequence[Alteration]) -> Tenant | None:
    """The tenant after the alterations, None if it is gone. `present` is None if there is none.

    To set the prefix makes the tenant, to delete it removes the tenant. Raises UnknownTenant and what is
    wrong with them."""
    _check_names(alterations, TENANT_SETTINGS, "tenant")
    prefix = next((alteration for alteration in alterations if alteration.name == PREFIX), None)
    if present is None:
        if prefix is None or prefix.operation is not AlterOperation.SET:
            raise UnknownTenant(name)
        present = Tenant(name=name, prefix=_value(PREFIX, prefix.value))
    elif prefix is not None and prefix.operation is _REMOVES:
        if len(alterations) > 1:
            raise ContradictoryRequest("a tenant is removed by itself, without other changes of it")
        return None
    for alteration in alterations:
        present = _altered_once(present, alteration)
    return present


def described_role(role: Role) -> Mapping[str, str | None]:
    """The settings of a role as text."""
    return {MEMBERS: joined(role.members)}


def described_tenant(tenant: Tenant) -> Mapping[str, str | None]:
    """The settings of a tenant as text; None for a limit that it does not have."""
    return {
        PREFIX: tenant.prefix,
        ADMINISTRATORS: joined(tenant.administrators),
        MEMBERS: joined(tenant.members),
        WHEN_FULL: tenant.when_full.value,
        **{name: format_value(getattr(tenant.limits, field)) for name, field in LIMITS.items()},
    }


def _check_names(alterations: Sequence[Alteration], known: Sequence[str], kind: str) -> None:
    seen: dict[str, None] = {}
    for name, operation, _ in alterations:
        if name not in known:
            raise unknown_name(name, known, kind)
        if name in seen:
            raise ContradictoryRequest(f"the setting {name} is altered twice in one request")
        seen[name] = None
        if operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT) and name not in LISTS:
            raise InvalidConfig(name, None, f"not a list: {operation.name} means nothing")


def _altered_once(tenant: Tenant, alteration: Alteration) -> Tenant:
    name, operation, value = alteration
    if name == PREFIX:
        return replace(tenant, prefix=_value(name, value))
    if name == ADMINISTRATORS:
        return replace(tenant, administrators=_changed(tenant.administrators, operation, value))
    if name == MEMBERS:
        return replace(tenant, members=_changed(tenant.members, operation, value))
    if name == WHEN_FULL:
        is_default = operation is _REMOVES
        return replace(tenant, when_full=WhenFull.HOLD if is_default else _when_full(_value(name, value)))
    bound = None if operation is _REMOVES else _number(name, _value(name, value))
    limits = TenantLimits(**{**tenant.limits._asdict(), LIMITS[name]: bound})
    return replace(tenant, limits=limits)


def _changed(present: tuple[str, ...], operation: AlterOperation, value: str | None) -> tuple[str, ...]:
    if operation is _REMOVES:
        return ()
    named = _principals(_value("a list", value))
    match operation:
        case AlterOperation.SET:
            return named
        case AlterOperation.APPEND:
            return tuple(dict.fromkeys((*present, *named)))
        case AlterOperation.SUBTRACT:
            return tuple(principal for principal in present if principal not in named)


def _principals(value: str) -> tuple[str, ...]:
    principals = split(value)
    for principal in principals:
        if principal.endswith("\\"):
            # In a list it would take the semicolon behind it for a part of its name.
            raise ContradictoryRequest(f"{principal}: a name in a list cannot end with a backslash")
    return principals


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise ContradictoryRequest(f"the setting {name} is to be changed, but without a value")
    return value


def _when_full(value: str) -> WhenFull:
    try:
        return WhenFull(value)
    except ValueError:
        raise InvalidConfig(WHEN_FULL, value, "not allowed", allowed=", ".join(WhenFull)) from None


def _number(name: str, value: str) -> float | int:
    parsed = Setting(name=name, type=LIMIT_TYPES[name], default=None, doc="").parse(value)
    assert isinstance(parsed, int | float), parsed
    if not 0 < parsed < float("inf"):
        raise InvalidConfig(name, value, "not allowed", allowed="greater than 0")
    return parsed
