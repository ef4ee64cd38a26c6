"""Which rule decides, and why: in words for people, and in Kafka's words for the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.security.acls.authorizer import Authorizer, Reason, Ruling, Subject
from millrace.security.acls.binding import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.roles import EVERYBODY
from millrace.security.principals import ROLE


class Explanation(NamedTuple):
    """A decision and the way to it."""

    ruling: Ruling
    words: tuple[str, ...]
    """Sentences, the decision first."""


def explain(
    authorizer: Authorizer,
    subject: Subject,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> Explanation:
    """What would be decided, and by which rule."""
    ruling = authorizer.ruling(subject, operation, resource_type, name)
    verdict = "may" if ruling.is_allowed else "may not"
    wish = f"{_verb(operation)} {_resource(resource_type, name)}"
    first = f"{subject.principal} {verdict} {wish} from {subject.host}."
    return Explanation(ruling, (first, *_reasons(authorizer, subject, operation, ruling)))


def rule_text(ruling: Ruling) -> str:
    """The rule as Kafka's authorizer names it."""
    if ruling.acl is None:
        return str(ruling.reason)
    acl = ruling.acl
    return (
        f"MatchingAcl(acl=StandardAcl[resourceType={acl.resource_type.name}, resourceName={acl.name}, "
        f"patternType={acl.pattern.name}, principal={acl.principal}, host={acl.host}, "
        f"operation={acl.operation.name}, permissionType={acl.permission.name}])"
    )


def describe_acl(acl: Acl) -> str:
    """A permission as a sentence without a full stop."""
    who = "everybody" if acl.principal == EVERYBODY else acl.principal
    where = "" if acl.host == WILDCARD else f" from {acl.host}"
    what = _pattern(acl)
    verb = "may" if acl.permission is Permission.ALLOW else "may not"
    return f"{who} {verb} {_verb(acl.operation)} {what}{where}"


def _reasons(authorizer: Authorizer, subject: Subject, operation: Operation, ruling: Ruling) -> Iterator[str]:
    match ruling.reason:
        case Reason.SUPER_USER:
            yield "A super user may do everything (super.users)."
        case Reason.NO_ACL:
            yield (
                "No permission covers this resource, and such resources are open to everybody "
                "(allow.everyone.if.no.acl.found)."
            )
        case Reason.CLOSED if ruling.is_covered:
            yield "Permissions cover this resource, but none of them allows this, and so it is denied."
        case Reason.CLOSED:
            yield (
                "No permission covers this resource, and such resources are closed to everybody but super "
                "users (allow.everyone.if.no.acl.found is false)."
            )
        case Reason.ACL:
            acl = ruling.acl
            assert acl is not None, ruling
            yield f"The rule: {describe_acl(acl)}."
            if acl not in authorizer.acls:
                yield "It was not set by itself: a tenant stands for it."
            yield from _by_role(authorizer, subject, acl)
            if acl.permission is Permission.DENY:
                yield "What is denied stays denied, whatever else allows it."
            elif acl.operation not in (operation, Operation.ALL):
                yield f"Whoever may {_verb(acl.operation)} may also {_verb(operation)}."


def _by_role(authorizer: Authorizer, subject: Subject, acl: Acl) -> Iterator[str]:
    kind, _, role = acl.principal.partition(":")
    if kind != ROLE:
        if acl.principal not in (subject.principal, EVERYBODY):
            yield f"{subject.principal} belongs to {acl.principal}."
        return
    for member in subject.principals:
        if role in authorizer.roles.roles_of(member):
            via = "" if member == subject.principal else f", to which {subject.principal} belongs,"
            yield f"{member}{via} has the role {role}."


def _verb(operation: Operation) -> str:
    return "do everything to" if operation is Operation.ALL else operation.name.lower().replace("_", " ")


def _resource(resource_type: ResourceType, name: str) -> str:
    if resource_type is ResourceType.CLUSTER:
        return "the cluster"
    return f"{_type(resource_type)} {name!r}"


def _pattern(acl: Acl) -> str:
    if acl.resource_type is ResourceType.CLUSTER:
        return "the cluster"
    if acl.pattern is PatternType.PREFIXED:
        return f"every {_type(acl.resource_type)} whose name begins with {acl.name!r}"
    if acl.name == WILDCARD:
        return f"every {_type(acl.resource_type)}"
    return f"{_type(acl.resource_type)} {acl.name!r}"


def _type(resource_type: ResourceType) -> str:
    return resource_type.name.lower().replace("_", " ")
