"""What an audit tells: who did what to what, from where, with which result. Nothing in here is a secret."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from millrace.security.acls.binding import Operation, ResourceType

NAME_CHARACTERS_MAX: Final = 512
"""What strangers send as a name is told up to here."""


class Kind(enum.StrEnum):
    """What can be asked for by `audit.event.types`."""

    LOGIN = "login"
    ADMIN = "admin"
    """What changes something for others: topics, settings, permissions, users."""
    DENIED = "denied"
    DATA = "data"
    """Reads and writes that were allowed."""
    DESCRIBE = "describe"
    """Looks at what there is, and what brokers do for each other."""
    LIFECYCLE = "lifecycle"


DEFAULT_KINDS: Final = (Kind.LOGIN, Kind.ADMIN, Kind.DENIED, Kind.DATA, Kind.LIFECYCLE)

_LOOKS: Final = frozenset(
    (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE_TOKENS, Operation.CLUSTER_ACTION)
)
_DATA: Final = frozenset(
    (Operation.READ, Operation.WRITE, Operation.IDEMPOTENT_WRITE, Operation.TWO_PHASE_COMMIT)
)


def kind_of(operation: Operation, *, is_allowed: bool) -> Kind:
    """Which kind a decision belongs to."""
    if not is_allowed:
        return Kind.DENIED
    if operation in _DATA:
        return Kind.DATA
    return Kind.DESCRIBE if operation in _LOOKS else Kind.ADMIN


class Actor(NamedTuple):
    """Who did it, and from where."""

    principal: str
    """`User:alice`. For a login that failed what somebody claimed to be, or empty if they said nothing."""
    host: str
    client_id: str = ""


class Decision(NamedTuple):
    """Something was asked for, and allowed or denied."""

    actor: Actor
    request: str
    """The name of the API, as Kafka writes it: `CreateTopics`."""
    operation: Operation
    resource_type: ResourceType
    resource: str
    is_allowed: bool
    rule: str
    """What decided, in the words of Kafka's authorizer."""

    @property
    def key(self) -> Hashable:
        # Who it was, not what they call their client: that is theirs to change with each connection.
        return self[0][:2], self[1], self[2], self[3], self[4], self[5]


class Login(NamedTuple):
    """Somebody has shown who they are, or could not."""

    actor: Actor
    mechanism: str
    """The SASL mechanism, or `TLS` for a certificate."""
    listener: str
    is_success: bool
    is_encrypted: bool
    reason: str = ""
    """Why it failed. It is for the operator; the client is told less."""

    @property
    def key(self) -> Hashable:
        return self.actor[:2], self.mechanism, self.listener, self.is_success, self.reason


class Result(NamedTuple):
    """What came of an administrative request for one of the things that it names."""

    resource_type: str
    """`Topic`, `Broker`, `User`, `Acl`."""
    resource: str
    error: str
    """The name of the error code; `NONE` for a success."""
    detail: str = ""
    """What of it was to change: names of settings, never their values."""


class AdminAction(NamedTuple):
    """An administrative request, with what came of it."""

    actor: Actor
    request: str
    results: tuple[Result, ...]
    left_out: int = 0
    """How many further results there were."""


class Activity(enum.Enum):
    """What happened to the broker. The numbers are those of OCSF's class 6002."""

    START = 3
    STOP = 4
    EVENTS_LOST = 99


class Lifecycle(NamedTuple):
    """A broker starts or stops, or events were lost."""

    activity: Activity
    text: str


Happening: TypeAlias = Decision | Login | AdminAction | Lifecycle


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, once or several times."""

    uid: str
    """Differs from that of every other event of the cluster: what was stored twice can be told apart from
    what happened twice."""
    first_ms: int
    last_ms: int
    count: int
    what: Happening


def shown(name: str) -> str:
    """A name of a stranger's, cut to a length that is worth storing."""
    return name if len(name) <= NAME_CHARACTERS_MAX else name[:NAME_CHARACTERS_MAX] + "..."
