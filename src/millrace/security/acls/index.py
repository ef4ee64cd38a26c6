"""All permissions, compiled for looking up. An index never changes: a changed one is a new object that shares
nearly everything with the old one, so that one permission more among a hundred thousand costs microseconds.

Permissions of the same pattern for the same principal and host are one `Grant`, whose operations are bits: a
look-up reads whole sets of operations. A grant is found in two ways, from its resource and from its subject:

    TOPIC:  literal   "orders" -> {"6 User:a*": Grant(allowed READ, WRITE)}     "*" is a name like others
            prefixed  "ord"    -> {"6 User:a10.0.0.1": Grant(denied READ)}      lengths in use: 3
            subjects  "6 User:a*" -> {"=orders": that grant}

What covers a name is the literal grants of the name, those of `*`, and those of its beginnings of the lengths
in use: a handful of look-ups, however many permissions there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.core.override import override
from millrace.core.persistent_map import PersistentMap
from millrace.security.acls.binding import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.filters import AclFilter

SMALL_MAX: Final = 64
"""The most grants that lie in a plain dict, which is copied when one of them changes."""


class Grant(NamedTuple):
    """What one principal may and may not do to one pattern, from one host or any."""

    pattern: PatternType
    name: str
    principal: str
    host: str
    allowed: int
    """Bits: 1 << operation."""
    denied: int


Grants = Mapping[str, Grant]


def subject_key(principal: str, host: str) -> str:
    """Under which the grants of a principal from a host are found. The length keeps the two apart, whatever
    is in them."""
    return f"{len(principal)} {principal}{host}"


@dataclass(frozen=True, slots=True)
class TypeIndex:
    """The permissions of one resource type."""

    literal: PersistentMap[str, Grants]
    prefixed: PersistentMap[str, Grants]
    lengths: Mapping[int, int]
    """How many prefixes there are of each length, longest first."""
    subjects: PersistentMap[str, Grants]
    """The grants of each subject, first by `subject_key`, then by pattern and name."""

    def covering(self, name: str) -> Iterator[Grants]:
        """The grants of every pattern that covers a name, the most special first. None if nothing does."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if self.lengths:
            prefixed, size = self.prefixed, len(name)
            for length in self.lengths:
                if length <= size and (found := prefixed.get(name[:length])) is not None:
                    yield found
        if name != WILDCARD and (found := self.literal.get(WILDCARD)) is not None:
            yield found

    def acls(self, resource_type: ResourceType) -> Iterator[Acl]:
        for patterns in (self.literal, self.prefixed):
            for grants in patterns.values():
                for grant in grants.values():
                    yield from _acls_of(resource_type, grant)


_EMPTY_TYPE: Final = TypeIndex(PersistentMap(), PersistentMap(), {}, PersistentMap())


class AclIndex:
    """All permissions at one moment. It never changes."""

    __slots__ = ("_count", "_types")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._types: Mapping[ResourceType, TypeIndex] = {}
        self._count = 0
        made = self.updated(acls)
        self._types, self._count = made._types, made._count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Acl]:
        """Each permission once, in no order that means anything."""
        for resource_type, found in self._types.items():
            yield from found.acls(resource_type)

    def __contains__(self, acl: Acl) -> bool:
        found = self._types.get(acl.resource_type)
        if found is None:
            return False
        patterns = found.literal if acl.pattern is PatternType.LITERAL else found.prefixed
        grant = patterns.get(acl.name, _NO_GRANTS).get(subject_key(acl.principal, acl.host))
        if grant is None:
            return False
        bits = grant.allowed if acl.permission is Permission.ALLOW else grant.denied
        return bool(bits >> acl.operation & 1)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, AclIndex) and len(self) == len(other) and all(acl in other for acl in self)

    __hash__ = None  # type: ignore[assignment]  # compared by what it holds, and never a key

    @override
    def __repr__(self) -> str:
        return f"AclIndex({self._count} permissions)"

    def of_type(self, resource_type: ResourceType) -> TypeIndex | None:
        """The permissions about resources of this type, if there are any."""
        return self._types.get(resource_type)

    def matching(self, wanted: AclFilter) -> Iterator[Acl]:
        """The permissions that a filter matches. Without a name it looks at all of them: whoever may meet
        many takes them in portions."""
        for resource_type, found in self._types.items():
            if wanted.resource_type not in (ResourceType.ANY, resource_type):
                continue
            if wanted.name is None:
                candidates = found.acls(resource_type)
            else:
                candidates = _named(resource_type, found, wanted.name)
            for acl in candidates:
                if wanted.matches(acl):
                    yield acl

    def updated(self, added: Iterable[Acl] = (), removed: Iterable[Acl] = ()) -> AclIndex:
        """The index with some permissions more and others less; one in both is there afterwards. Adding what
        is there and removing what is not changes nothing."""
        edits: dict[ResourceType, _TypeEdits] = {}
        for acls, is_added in ((removed, False), (added, True)):
            for acl in acls:
                of_type = edits.get(acl.resource_type)
                if of_type is None:
                    of_type = edits[acl.resource_type] = _TypeEdits()
                of_type.note(acl, is_added=is_added)
        if not edits:
            return self
        types = dict(self._types)
        count = self._count
        for resource_type, of_type in edits.items():
            changed, difference = of_type.applied(types.get(resource_type, _EMPTY_TYPE))
            count += difference
            if len(changed.subjects):
                types[resource_type] = changed
            else:
                types.pop(resource_type, None)
        made = AclIndex.__new__(AclIndex)
        made._types = {resource_type: types[resource_type] for resource_type in sorted(types)}
        made._count = count
        return made


@dataclass(slots=True)
class _Bits:
    """The changes of one grant: bits that are set, and masks of those that are kept."""

    pattern: PatternType
    name: str
    principal: str
    host: str
    allow: int = 0
    deny: int = 0
    keep_allowed: int = -1
    keep_denied: int = -1


@dataclass(slots=True)
class _TypeEdits:
    """The changes among the permissions of one resource type."""

    patterns: dict[tuple[PatternType, str], dict[str, _Bits]] = field(default_factory=dict)

    def note(self, acl: Acl, *, is_added: bool) -> None:
        grants = self.patterns.setdefault((acl.pattern, acl.name), {})
        key = subject_key(acl.principal, acl.host)
        bits = grants.get(key)
        if bits is None:
            bits = grants[key] = _Bits(acl.pattern, acl.name, acl.principal, acl.host)
        bit = 1 << acl.operation
        if is_added and acl.permission is Permission.ALLOW:
            bits.allow |= bit
        elif is_added:
            bits.deny |= bit
        elif acl.permission is Permission.ALLOW:
            bits.keep_allowed &= ~bit
        else:
            bits.keep_denied &= ~bit

    def applied(self, index: TypeIndex) -> tuple[TypeIndex, int]:
        """The changed index, and how many permissions it has more than before."""
        count = 0
        by_subject: dict[str, dict[str, Grant | None]] = {}
        literal: dict[str, Grants] = {}
        prefixed: dict[str, Grants] = {}
        lengths = dict(index.lengths)
        for (pattern, name), edits in self.patterns.items():
            is_literal = pattern is PatternType.LITERAL
            before = (index.literal if is_literal else index.prefixed).get(name, _NO_GRANTS)
            changes: dict[str, Grant | None] = {}
            place = f"={name}" if is_literal else f"^{name}"
            for key, bits in edits.items():
                old = before.get(key)
                new = _changed(old, bits)
                if new == old:
                    continue
                count += _size(new) - _size(old)
                changes[key] = new
                by_subject.setdefault(key, {})[place] = new
            if not changes:
                continue
            after = _edited(before, changes)
            (literal if is_literal else prefixed)[name] = after
            if not is_literal:
                lengths[len(name)] = lengths.get(len(name), 0) + bool(after) - bool(before)
        subjects = {
            key: _edited(index.subjects.get(key, _NO_GRANTS), changes) for key, changes in by_subject.items()
        }
        return (
            TypeIndex(
                _with(index.literal, literal),
                _with(index.prefixed, prefixed),
                {length: lengths[length] for length in sorted(lengths, reverse=True) if lengths[length]},
                _with(index.subjects, subjects),
            ),
            count,
        )


def _changed(old: Grant | None, bits: _Bits) -> Grant | None:
    allowed = (old.allowed if old is not None else 0) & bits.keep_allowed | bits.allow
    denied = (old.denied if old is not None else 0) & bits.keep_denied | bits.deny
    if not allowed and not denied:
        return None
    return Grant(bits.pattern, bits.name, bits.principal, bits.host, allowed, denied)


def _edited(before: Grants, changes: Mapping[str, Grant | None]) -> Grants:
    puts = {key: grant for key, grant in changes.items() if grant is not None}
    if isinstance(before, PersistentMap):
        after = before.updated(puts, changes)
        return after if len(after) > SMALL_MAX // 2 else dict(after)
    merged = {key: grant for key, grant in before.items() if key not in changes}
    merged.update(puts)
    return merged if len(merged) <= SMALL_MAX else PersistentMap(merged.items())


def _with(known: PersistentMap[str, Grants], changed: Mapping[str, Grants]) -> PersistentMap[str, Grants]:
    if not changed:
        return known
    return known.updated({key: grants for key, grants in changed.items() if grants}, changed)


def _size(grant: Grant | None) -> int:
    return 0 if grant is None else grant.allowed.bit_count() + grant.denied.bit_count()


def _named(resource_type: ResourceType, index: TypeIndex, name: str) -> Iterator[Acl]:
    """All that a filter with this name can match: what covers the name, and the prefix of exactly this
    name."""
    for grants in index.covering(name):
        for grant in grants.values():
            yield from _acls_of(resource_type, grant)


def _acls_of(resource_type: ResourceType, grant: Grant) -> Iterator[Acl]:
    pattern, name, principal, host, allowed, denied = grant
    for bits, permission in ((allowed, Permission.ALLOW), (denied, Permission.DENY)):
        while bits:
            operation = _OPERATIONS[(bits & -bits).bit_length() - 1]
            yield Acl(resource_type, name, pattern, principal, host, operation, permission)
            bits &= bits - 1


_NO_GRANTS: Final[Grants] = {}
_OPERATIONS: Final = tuple(Operation)
EMPTY_ACLS: Final = AclIndex()
