"""What an API demands of those who ask: declared beside each, for the docs and the tests.

The handlers enforce it, each in the order and with the refusal that Kafka has for it; nothing is decided by
these declarations.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.core.override import override
from millrace.security.acls.binding import Operation, ResourceType


class Check(NamedTuple):
    """One operation that must be allowed on a resource of a type, and when it is asked for."""

    operation: Operation
    resource: ResourceType
    note: str = ""
    """Where it is not always checked: when it is."""

    @override
    def __str__(self) -> str:
        operation = "".join(word.capitalize() for word in self.operation.name.split("_"))
        resource = self.resource.name.replace("_", " ").lower()
        return f"{operation} {resource}" + (f" ({self.note})" if self.note else "")


Checks = tuple[Check, ...]

NONE: Final[Checks] = ()
"""Everybody may ask: said aloud, so that no API lacks its checks by oversight."""


def on_topic(operation: Operation, note: str = "") -> Check:
    return Check(operation, ResourceType.TOPIC, note)


def on_group(operation: Operation, note: str = "") -> Check:
    return Check(operation, ResourceType.GROUP, note)


def on_cluster(operation: Operation, note: str = "") -> Check:
    return Check(operation, ResourceType.CLUSTER, note)


def on_transactional_id(operation: Operation, note: str = "") -> Check:
    return Check(operation, ResourceType.TRANSACTIONAL_ID, note)
