"""What a connection was found to be allowed, so that it is worked out once and not for every request.

One rule says when this is forgotten: `Access` has another authorizer, or the connection another identity. An
authorizer stands for one revision of the permissions, and takes the place of the one before in the same step
in which the metadata's image does. No connection sees what another was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from millrace.security.acls.authorizer import SUPPORTED_OPERATIONS, Authorizer, Subject
from millrace.security.acls.binding import CLUSTER_NAME, WILDCARD, Operation, ResourceType
from millrace.security.acls.explain import rule_text
from millrace.security.principals import Identity

if TYPE_CHECKING:
    from millrace.security.audit.auditor import Auditor

REMEMBERED_MAX: Final = 10_000
"""Decisions of one connection: about as many as one has partitions to ask for."""
REMEMBERED_LENGTH_MAX: Final = 500
"""Longer names are worked out each time: a client may ask for names of megabytes, and is not to fill the
memory with them, were it by being refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """What the configuration says where permissions are checked at all."""

    super_users: frozenset[str]
    is_open_without_acl: bool


class Access:
    """The authorizer of this moment, or None where nothing is restricted. The broker has one of these, and
    whoever follows the metadata replaces what is in it."""

    __slots__ = ("_watchers", "auditor", "authorizer")

    def __init__(self, authorizer: Authorizer | None = None) -> None:
        self.authorizer = authorizer
        self.auditor: Auditor | None = None
        """Is told what was decided; None where nobody wants to know."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever other rules count, in the same step; it must neither block nor raise."""
        self._watchers.append(changed)

    def replace(self, authorizer: Authorizer | None) -> None:
        """Decide by this one from now on. What decisions remember is forgotten when they are next asked."""
        self.authorizer = authorizer
        for changed in self._watchers:
            changed()

    def is_super(self, identity: Identity) -> bool:
        """Whether somebody may do everything, whatever the permissions say."""
        authorizer = self.authorizer
        return authorizer is not None and authorizer.is_super(
            authorizer.subject(identity.principal, "", identity.groups)
        )

    def renew(self) -> None:
        """Decide by the same rules, and let all that was remembered be forgotten: who goes on reading and
        writing is told of again."""
        if self.authorizer is not None:
            self.replace(replace(self.authorizer))


class Decisions:
    """What one connection may do. Cheap to make: nothing is worked out before something is asked."""

    __slots__ = (
        "_access",
        "_authorizer",
        "_host",
        "_identity",
        "_known",
        "_operations",
        "_subject",
        "request",
    )

    def __init__(self, access: Access, identity: Identity, host: str) -> None:
        self._access = access
        self._identity = identity
        self._host = host
        self._known: dict[tuple[int, int, str], bool] = {}
        self._operations: dict[tuple[int, str], int] = {}
        self._authorizer: Authorizer | None = None
        self._subject: Subject | None = None
        self.request = ""
        """The name of the API that is asked for, set by the connection whenever it is another one."""

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def asker(self) -> Hashable | None:
        """Who may ask the same as this connection: those with the same name and groups, from the same host,
        since permissions may name each of these. None where nothing is restricted: then all may."""
        if self._access.authorizer is None:
            return None
        return (self._identity.principal, self._identity.groups, self._host)

    def authenticated_as(self, identity: Identity) -> None:
        """The connection has shown who it is, for the first time or again."""
        self._identity = identity
        self._forget(None)

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the connection may do this now. A refusal is told each time, which the audit folds."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return True
        if authorizer is not self._authorizer:
            self._forget(authorizer)
        key = (operation, resource_type, name)
        found = self._known.get(key)
        if found is None:
            found = authorizer.allows(self._subject_of(authorizer), operation, resource_type, name)
            self._remember(key, found)
            self._tell_ruling(authorizer, key, found)
        elif not found:
            self._tell_ruling(authorizer, key, found)
        return found

    def shows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """The same for lists of all that somebody may see: what is left out of them was not asked for by its
        name, so that nobody is told of a refusal."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return True
        if authorizer is not self._authorizer:
            self._forget(authorizer)
        key = (operation, resource_type, name)
        found = self._known.get(key)
        if found is None:
            found = authorizer.allows(self._subject_of(authorizer), operation, resource_type, name)
            self._remember(key, found)
            if found:
                self._tell_ruling(authorizer, key, found)
        return found

    def allows_on_topic(self, operation: Operation, topic: str) -> bool:
        return self.allows(operation, ResourceType.TOPIC, topic)

    def allows_on_group(self, operation: Operation, group_id: str) -> bool:
        return self.allows(operation, ResourceType.GROUP, group_id)

    def allows_on_transactional_id(self, operation: Operation, transactional_id: str) -> bool:
        return self.allows(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def shows_on_cluster(self, operation: Operation) -> bool:
        """Whether the connection may do this to the cluster; if not, something else may allow it still."""
        return self.shows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_on_cluster(self, operation: Operation) -> bool:
        """Whether the connection may do this to the cluster."""
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_somewhere(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the connection may do this to any resource of the type."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return True
        if authorizer is not self._authorizer:
            self._forget(authorizer)
        # No resource has such a type: names can be anything, also empty.
        key = (operation, -resource_type, "")
        found = self._known.get(key)
        is_new = found is None
        if found is None:
            found = authorizer.allows_somewhere(self._subject_of(authorizer), operation, resource_type)
            self._remember(key, found)
        if is_new or not found:
            self._tell(operation, resource_type, WILDCARD, found, lambda: "authorizeByResourceType")
        return found

    def authorized_operations(self, resource_type: ResourceType, name: str) -> int:
        """All that the connection may do to a resource, as answers tell it: bits of 1 << operation."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return EVERY_OPERATION[resource_type]
        if authorizer is not self._authorizer:
            self._forget(authorizer)
        key = (resource_type, name)
        found = self._operations.get(key)
        if found is None:
            found = authorizer.authorized_operations(self._subject_of(authorizer), resource_type, name)
            if len(name) <= REMEMBERED_LENGTH_MAX:
                if len(self._operations) >= REMEMBERED_MAX:
                    self._operations.clear()
                self._operations[key] = found
        return found

    def told_cluster_operations(self) -> int:
        """All that the connection may do to the cluster, as answers tell it: nothing to those who may not
        describe it."""
        if not self.allows_on_cluster(Operation.DESCRIBE):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)

    @property
    def is_restricted(self) -> bool:
        """Whether anything is restricted at all."""
        return self._access.authorizer is not None

    @property
    def subject(self) -> Subject | None:
        """Who the connection counts as, for audits and explanations; None where nothing is restricted."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return None
        if authorizer is not self._authorizer:
            self._forget(authorizer)
        return self._subject_of(authorizer)

    def _remember(self, key: tuple[int, int, str], is_allowed: bool) -> None:
        if len(key[2]) > REMEMBERED_LENGTH_MAX:
            return
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[key] = is_allowed

    def _tell_ruling(
        self, authorizer: Authorizer, asked: tuple[Operation, ResourceType, str], is_allowed: bool
    ) -> None:
        self._tell(
            *asked,
            is_allowed,
            lambda: rule_text(authorizer.ruling(self._subject_of(authorizer), *asked)),
        )

    def _tell(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        is_allowed: bool,
        rule: Callable[[], str],
    ) -> None:
        auditor = self._access.auditor
        if auditor is not None:
            auditor.decided(
                self._identity,
                self._host,
                self.request,
                operation,
                resource_type,
                name,
                is_allowed=is_allowed,
                rule=rule,
            )

    def _subject_of(self, authorizer: Authorizer) -> Subject:
        if self._subject is None:
            identity = self._identity
            self._subject = authorizer.subject(identity.principal, self._host, identity.groups)
        return self._subject

    def _forget(self, authorizer: Authorizer | None) -> None:
        self._authorizer = authorizer
        self._subject = None
        self._known.clear()
        self._operations.clear()


EVERY_OPERATION: Final = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in SUPPORTED_OPERATIONS.items()
}
"""What answers tell where nothing is restricted."""
