"""How a message is described: one `Field` per field, in wire order, with the versions that carry it."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

NO_UUID: Final = bytes(16)
"""Kafka has no null for a UUID: sixteen zero bytes stand for none."""

INT32_MAX: Final = 2**31 - 1

OUR_TAGS_FROM: Final = 10_000
"""Tagged fields from this number on are ours. Kafka counts its own from 0, and its readers skip tags that
they do not know."""


class Zero:
    """Marks a default that is the zero of its type: 0, "", False, an empty array, a struct of defaults."""


ZERO: Final = Zero()


class Message(Protocol):
    """Every generated class: plain attributes, and the table from which its codecs are compiled."""

    FIELDS: ClassVar[tuple[Field, ...]]


class Field:
    """One field over all versions of its message.

    `kind` is Kafka's word for it ("int32", "string", "records", ...), "[]int32" for an array,
    "struct" or "[]struct" with `struct` naming the class. `versions` and `nullable` read as in
    Kafka's own schema files: "3+" or "0-4". A field with a tag is tagged in every version that has it.
    """

    __slots__ = ("default", "kind", "name", "nullable", "struct", "tag", "versions")

    def __init__(
        self,
        name: str,
        kind: str,
        versions: str,
        *,
        struct: type[Message] | None = None,
        nullable: str = "",
        tag: int | None = None,
        default: object = ZERO,
    ) -> None:
        self.name = name
        self.kind = kind
        self.versions = parse_versions(versions)
        self.struct = struct
        self.nullable = parse_versions(nullable)
        self.tag = tag
        self.default = default

    def is_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable[0] <= version <= self.nullable[1]


def parse_versions(text: str) -> tuple[int, int]:
    """The first and last version of a range such as "3+", "0-4" or "" (none)."""
    if not text:
        return (0, -1)
    if text.endswith("+"):
        return (int(text[:-1]), INT32_MAX)
    first, _, last = text.partition("-")
    return (int(first), int(last or first))
