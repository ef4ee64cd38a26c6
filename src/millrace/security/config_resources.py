"""Roles and tenants as the config APIs name them: Kafka has no API for either, and clients have these.

IncrementalAlterConfigs (44) makes, changes and removes them, DescribeConfigs (32) shows them, and
ListConfigResources (74) lists them when it is asked for their type. Whoever speaks to a broker about roles
and tenants takes the names from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

ROLE_TYPE: Final = 100
"""The resource type of a role. Kafka's are powers of two, 32 the last; the field is a signed byte."""
TENANT_TYPE: Final = 101

MEMBERS: Final = "members"
"""Of a role and of a tenant: a list of principals. SET makes a role that is not there; DELETE removes it."""

PREFIX: Final = "prefix"
"""Of a tenant: what its names begin with. SET makes a tenant that is not there; DELETE removes it."""
ADMINISTRATORS: Final = "administrators"
"""Of a tenant: a list of principals."""
WHEN_FULL: Final = "when.full"
"""Of a tenant: `hold` or `reject`."""
LIMITS: Final = {
    "bytes.in.per.second": "bytes_in_per_s",
    "bytes.out.per.second": "bytes_out_per_s",
    "request.percentage": "request_percentage",
    "partitions.max": "partitions",
    "stored.bytes.max": "stored_bytes",
    "connections.max": "connections",
}
"""Of a tenant: what it may take, with the field of `TenantLimits`. DELETE takes a limit away."""

ROLE_SETTINGS: Final = (MEMBERS,)
TENANT_SETTINGS: Final = (PREFIX, ADMINISTRATORS, MEMBERS, WHEN_FULL, *LIMITS)
LISTS: Final = (MEMBERS, ADMINISTRATORS)
"""The settings that APPEND and SUBTRACT are for."""

SEPARATOR: Final = ";"
"""Between principals, as in `super.users`: names of certificates have commas."""
_UNESCAPED_SEPARATOR: Final = re.compile(r"(?<!\\);")


def joined(principals: Iterable[str]) -> str:
    """The value of a list."""
    return SEPARATOR.join(principals)


def split(value: str) -> tuple[str, ...]:
    """The principals in the value of a list, each once. Names of certificates write a semicolon as `\\;`,
    which does not separate."""
    parts = (part.strip() for part in _UNESCAPED_SEPARATOR.split(value))
    return tuple(dict.fromkeys(part for part in parts if part))
