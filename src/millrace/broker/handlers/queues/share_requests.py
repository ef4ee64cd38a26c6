"""What ShareFetch and ShareAcknowledge have in common: who may ask, and what is said of their
acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.queues.live_share import LiveShare, as_told
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.queues.share_partition.model import ShareKey
from millrace.security.acls.binding import Operation
from millrace.wire.error_codes import ErrorCode
from millrace.wire.share_codec import AckBatch, PartitionAsked, PartitionResult, Results

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.connection import Connection
    from millrace.broker.queues.share_partitions import SharePartitions
    from millrace.broker.queues.share_sessions import TargetKey
    from millrace.core.ids import TopicId
    from millrace.security.acls.decisions import Decisions
    from millrace.wire.framing import NodeEndpoint

MEMBER_ID_CHARACTERS_MAX: Final = 36
_RENEW: Final = 4

Refusal = tuple[ErrorCode, str | None]
NO_ERROR: Final[Refusal] = (ErrorCode.NONE, None)


def refusal(decisions: Decisions, group_id: str | None, member_id: str | None) -> Refusal | None:
    """Why a request is not looked at any further; None if it is."""
    if group_id is None:
        return ErrorCode.INVALID_REQUEST, "Invalid group id in the request."
    if decisions.is_restricted and not decisions.allows_on_group(Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED.message
    if not member_id or len(member_id) > MEMBER_ID_CHARACTERS_MAX:
        return ErrorCode.INVALID_REQUEST, "Invalid member id in the request."
    return None


def told(error: MillraceError) -> Refusal:
    return error_code(error), error_message(error)


def are_valid(acks: Iterable[AckBatch], *, type_max: int, is_renewal: bool) -> bool:
    """Whether acknowledgements make sense, whatever was delivered: in order, and with a known type for all or
    for each."""
    behind = -1
    for first, last, types in acks:
        count = len(types)
        if (
            first > last
            or first < behind
            or count == 0
            or (count > 1 and last - first != count - 1)
            # A negative type is a large one here.
            or max(types) > type_max
            or (not is_renewal and _RENEW in types)
        ):
            return False
        behind = last
    return True


class Acknowledgements:
    """What a request acknowledges, while it is stored, and what became of it."""

    __slots__ = ("_done", "_pending", "outcomes")

    def __init__(self) -> None:
        self.outcomes: dict[TargetKey, Refusal] = {}
        self._pending = 0
        self._done: Callable[[], None] | None = None

    @property
    def are_stored(self) -> bool:
        return not self._pending

    def when_stored(self, done: Callable[[], None]) -> None:
        """Call `done` once, when the outcomes are complete, which they are not yet."""
        self._done = done

    def take(
        self,
        connection: Connection,
        shares: SharePartitions,
        names: tuple[str, str],
        asked: Iterable[PartitionAsked],
        *,
        version: int,
        is_renewal: bool,
    ) -> None:
        """Carry out what a member of a group (`names`) says, each partition by itself."""
        services, decisions = connection.services, connection.decisions
        group_id, member_id = names
        topics = services.metadata.image.topics_by_id
        type_max = 4 if version >= 2 else 3
        for topic_id, index, acks in asked:
            key = (topic_id, index)
            topic = topics.get(topic_id)
            if topic is None:
                self.outcomes[key] = _refused(ErrorCode.UNKNOWN_TOPIC_ID)
            elif not are_valid(acks, type_max=type_max, is_renewal=is_renewal):
                self.outcomes[key] = _refused(ErrorCode.INVALID_REQUEST)
            elif decisions.is_restricted and not decisions.allows_on_topic(Operation.READ, topic.name):
                self.outcomes[key] = _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif not 0 <= index < len(topic.partitions):
                self.outcomes[key] = _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not acks:
                self.outcomes[key] = NO_ERROR
            else:
                share = shares.find(ShareKey(group_id, topic_id, index))
                if share is None:
                    self.outcomes[key] = _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    self._acknowledge(share, key, member_id, acks)

    def _acknowledge(
        self, share: LiveShare, key: TargetKey, member_id: str, acks: Sequence[AckBatch]
    ) -> None:
        written = share.acknowledge(member_id, acks)
        if not isinstance(written, asyncio.Future):
            self.outcomes[key] = NO_ERROR if written is None else told(as_told(share.key, written))
            return
        self.outcomes[key] = NO_ERROR
        self._pending += 1

        def stored(future: asyncio.Future[MillraceError | None]) -> None:
            error = future.result()
            if error is not None:
                self.outcomes[key] = told(as_told(share.key, error))
            self._pending -= 1
            if not self._pending and self._done is not None:
                self._done()

        written.add_done_callback(stored)


def _refused(code: ErrorCode) -> Refusal:
    return code, code.message


def by_topic(results: Iterable[tuple[TopicId, PartitionResult]]) -> Results:
    """The results of partitions, those of a topic together."""
    topics: dict[TopicId, list[PartitionResult]] = {}
    for topic_id, result in results:
        topics.setdefault(topic_id, []).append(result)
    return list(topics.items())


def leader_of(services: Services, key: TargetKey, code: int) -> tuple[int, int] | None:
    """Leader and epoch, for a client that was told to look for another broker."""
    if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        return None
    return services.current_leader("", key[0], key[1]) or (-1, -1)


def endpoints_of(
    connection: Connection, results: Iterable[tuple[TopicId, PartitionResult]]
) -> Sequence[NodeEndpoint]:
    """Where the leaders are that the results name."""
    named = [result.leader[0] for _, result in results if result.leader is not None and result.leader[0] >= 0]
    return connection.services.endpoints_of(named, connection.endpoint.listener) if named else ()
