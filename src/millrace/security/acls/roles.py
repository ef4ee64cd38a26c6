"""Roles: named sets of permissions that are given to users and groups.

The permissions of a role are ordinary ones whose principal is `Role:<name>`, so that tools made for Kafka set
and show them. Here is who has which role. A table never changes: a changed one is a new object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.core.persistent_map import PersistentMap
from millrace.security.acls.binding import WILDCARD
from millrace.security.principals import GROUP, ROLE, USER, InvalidPrincipal, Principal, parse_principal

ROLE_NAME_LENGTH_MAX: Final = 249
MEMBERS_MAX: Final = 10_000
"""The most members of a role, which is one record of the store. More belong into a group that credentials
name."""

EVERYBODY: Final = f"{USER}:{WILDCARD}"


class InvalidRole(MillraceError):
    """A role that cannot be: its name or a member of it."""


class Role(NamedTuple):
    """A role with those who have it, as texts: `User:alice`, `Group:operators`."""

    name: str
    members: tuple[str, ...]

    @property
    def principal(self) -> str:
        """The principal that its permissions name."""
        return f"{ROLE}:{self.name}"


def check_role(role: Role) -> None:
    """Whether such a role may be; raises InvalidRole."""
    if not 0 < len(role.name) <= ROLE_NAME_LENGTH_MAX:
        raise InvalidRole(f"a role's name has 1 to {ROLE_NAME_LENGTH_MAX} characters, not {len(role.name)}")
    if len(role.members) > MEMBERS_MAX:
        raise InvalidRole(f"role {role.name!r}: {len(role.members)} members; {MEMBERS_MAX} are allowed")
    for member in role.members:
        try:
            kind, name = parse_principal(member)
        except InvalidPrincipal as error:
            raise InvalidRole(f"role {role.name!r}: {error}") from error
        if kind not in (USER, GROUP):
            # A role in a role would have to be followed, and could lead back to itself.
            raise InvalidRole(f"role {role.name!r}: a member is a User or a Group, not {member}")
        if not name or (kind == USER and name == WILDCARD):
            raise InvalidRole(f"role {role.name!r}: {member} names nobody; permissions can be for User:*")


class RoleTable:
    """Who has which roles at one moment. It never changes."""

    __slots__ = ("_roles_of", "roles")

    def __init__(self, roles: Iterable[Role] = ()) -> None:
        self.roles: PersistentMap[str, Role] = PersistentMap()
        """All roles, by name."""
        self._roles_of: PersistentMap[str, tuple[str, ...]] = PersistentMap()
        """The names of a member's roles, in order."""
        made = self.updated({role.name: role for role in roles})
        self.roles, self._roles_of = made.roles, made._roles_of

    def __len__(self) -> int:
        return len(self.roles)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoleTable) and dict(self.roles) == dict(other.roles)

    __hash__ = None  # type: ignore[assignment]  # compared by what it holds, and never a key

    def updated(self, changes: Mapping[str, Role | None]) -> RoleTable:
        """The table with these roles as they are now; None for those that are gone."""
        touched: dict[str, dict[str, None]] = {}
        for name, role in changes.items():
            before = self.roles.get(name)
            for member in before.members if before is not None else ():
                touched.setdefault(member, dict.fromkeys(self._roles_of.get(member, ()))).pop(name, None)
            for member in role.members if role is not None else ():
                touched.setdefault(member, dict.fromkeys(self._roles_of.get(member, ())))[name] = None
        made = RoleTable.__new__(RoleTable)
        puts = {name: role for name, role in changes.items() if role is not None}
        made.roles = self.roles.updated(puts, changes)
        has_roles = {member: tuple(sorted(names)) for member, names in touched.items() if names}
        made._roles_of = self._roles_of.updated(has_roles, touched)
        return made

    def roles_of(self, member: str) -> tuple[str, ...]:
        """The names of the roles that were given to exactly this principal."""
        return self._roles_of.get(member, ())

    def principals(self, principal: Principal, groups: Iterable[str] = ()) -> tuple[str, ...]:
        """Everybody as whom somebody counts: themselves, everybody, their groups, and the roles of all these.

        It is worked out once for a connection and anew when roles change."""
        own = str(principal)
        found = dict.fromkeys((own, EVERYBODY))
        found.update(dict.fromkeys(f"{GROUP}:{group}" for group in groups))
        for member in list(found):
            found.update(dict.fromkeys(f"{ROLE}:{name}" for name in self._roles_of.get(member, ())))
        return tuple(found)


NO_ROLES: Final = RoleTable()
