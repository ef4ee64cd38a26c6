"""How people write principals, operations and resources: `alice`, `read,write`, `topic:orders`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeVar

import click

from millrace.security.acls.binding import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    ResourceType,
)
from millrace.security.principals import USER

RESOURCE_FORMS: Final = "TYPE:NAME, such as topic:orders, group:billing, transactional-id:pay; or cluster"
_FOR_FILTERS: Final = ("UNKNOWN", "ANY")
_Code = TypeVar("_Code", bound=IntEnum)


def principal(word: str) -> str:
    """`alice` is a user; `Role:ops` and `Group:staff` are themselves."""
    if not word.strip():
        raise click.BadParameter("a principal has a name")
    return word if ":" in word else f"{USER}:{word}"


def operations(words: str) -> list[Operation]:
    """One operation, or several with commas between them."""
    return [_member(Operation, word, what="operation") for word in words.split(",")]


def resource(word: str) -> tuple[ResourceType, str]:
    """The type and the name. The cluster needs no name: there is one."""
    kind, colon, name = word.partition(":")
    found = _member(ResourceType, kind, what="resource type")
    if found is ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise click.BadParameter(f"the only cluster is called {CLUSTER_NAME}")
        return found, CLUSTER_NAME
    if not colon or not name:
        raise click.BadParameter(f"{word!r} names no resource: {RESOURCE_FORMS}")
    return found, name


def shown(code: IntEnum) -> str:
    """A word as it is written on the command line."""
    return code.name.lower().replace("_", "-")


def shown_resource(acl: Acl) -> str:
    if acl.resource_type is ResourceType.CLUSTER:
        return shown(acl.resource_type)
    name = f"{acl.name}*" if acl.pattern is PatternType.PREFIXED else acl.name
    return f"{shown(acl.resource_type)}:{name}"


def shown_host(acl: Acl) -> str:
    return "anywhere" if acl.host == WILDCARD else acl.host


def _member(kind: type[_Code], word: str, *, what: str) -> _Code:
    name = word.strip().upper().replace("-", "_")
    if name in _FOR_FILTERS or name not in kind.__members__:
        known = ", ".join(shown(member) for member in kind if member.name not in _FOR_FILTERS)
        raise click.BadParameter(f"no {what} is called {word!r}; there are {known}")
    return kind[name]
