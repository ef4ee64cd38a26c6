"""Events as lines of a log file, as Kafka's `kafka.authorizer.logger` writes its decisions.

Kafka has no lines for logins, administrative requests and the life of a broker; theirs are built alike.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from millrace.security.acls.binding import PatternType
from millrace.security.audit.events import AdminAction, Decision, Event, Happening, Lifecycle, Login, Result

AUTHORIZER_LOGGER: Final = "kafka.authorizer.logger"
AUDIT_LOGGER: Final = "millrace.audit"
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\]")


def line_of(event: Event) -> str:
    """One line, without its end. What others have chosen, such as names, cannot begin another."""
    what = event.what
    when = datetime.fromtimestamp(event.last_ms / 1000, tz=UTC)
    time = f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}"
    logger = AUTHORIZER_LOGGER if isinstance(what, Decision) else AUDIT_LOGGER
    return f"[{time}] INFO {_UNPRINTABLE.sub(_escaped, message_of(what, event.count))} ({logger})"


def message_of(what: Happening, count: int = 1) -> str:
    """What happened, so often."""
    match what:
        case Decision():
            return (
                f"Principal = {what.actor.principal} is {'Allowed' if what.is_allowed else 'Denied'} "
                f"operation = {what.operation.name} from host = {what.actor.host} "
                f"on resource = {what.resource_type.title}:{PatternType.LITERAL.name}:{what.resource} "
                f"for request = {what.request} with resourceRefCount = {count} based on rule {what.rule}"
            )
        case Login():
            outcome = "logged in" if what.is_success else "failed to log in"
            because = f" because {what.reason}" if what.reason else ""
            return (
                f"Principal = {what.actor.principal} {outcome} by {what.mechanism} "
                f"from host = {what.actor.host} on listener = {what.listener} {count} times{because}"
            )
        case AdminAction():
            results = ", ".join(_result(result) for result in what.results)
            more = f" and {what.left_out} more" if what.left_out else ""
            return (
                f"Principal = {what.actor.principal} sent request = {what.request} "
                f"from host = {what.actor.host} with results = [{results}]{more}"
            )
        case Lifecycle():
            return what.text


def _result(result: Result) -> str:
    detail = f"({result.detail})" if result.detail else ""
    return f"{result.resource_type}:{result.resource}{detail}={result.error}"


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    return "\\\\" if character == "\\" else f"\\u{ord(character):04x}"
