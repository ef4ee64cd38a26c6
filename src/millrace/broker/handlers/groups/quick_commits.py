"""The quick way of OffsetCommit: it recognises by its bytes what repeats in a client's commits.

Who commits, to which partitions, and that they may, is worked out once (`network/recognition.py`). The group
is asked each time whether it lets a commit pass; the record, the state and the answer are those of the
general way (`offsets.offset_commit`), to which everything unusual is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from millrace.broker.network.requests import Request
from millrace.broker.wire_errors import error_code
from millrace.core.ids import TopicId
from millrace.groups.offsets.prepared_commits import Committer, Place, Wanted, apply_commit, place_of
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.commit_codec import (
    TOPIC_IDS_FROM,
    is_sole,
    read_commit,
    read_head,
    read_sole,
    topic_name,
)
from millrace.wire.framing import response_frame

if TYPE_CHECKING:
    from millrace.core.errors import MillraceError

_NO_ERROR: Final = b"\0\0"

Known: TypeAlias = tuple[Committer, list[Wanted], list[bytes]]
"""Who commits what, and what the answer has around its error codes."""


class CommitRequest(Request):
    """A commit that waits until it is stored."""

    __slots__ = ("pieces",)

    is_charged = False
    pieces: list[bytes]
    """What the answer has around its error codes."""

    def stored(self, error: MillraceError | None) -> None:
        """The offsets are stored, or will never be: answer."""
        route = self.route
        route.stats.record(self.connection.ticks() - self.started)
        code = _NO_ERROR if error is None else error_code(error).to_bytes(2, "big", signed=True)
        body = code.join(self.pieces)
        frame = response_frame(self.correlation_id, body, flexible=route.flexible_response)
        self.connection.complete(self, frame)


def quick_offset_commit(request: CommitRequest) -> bool:
    """Commit, if this is a commit like most; False leaves it to `offsets.offset_commit`."""
    connection, route = request.connection, request.route
    sole = read_sole(request.buffer, request.body, request.stop, route.version)
    seen = None if sole is None else connection.recognised[route].get(sole[0])
    wanted: list[Wanted]
    if sole is not None and seen is not None:
        committer, place, request.pieces = seen
        wanted = [(place, sole[1], sole[2], b"")]
    else:
        known = _recognise(request, None if sole is None else sole[0])
        if known is None:
            return False
        committer, wanted, request.pieces = known
    services = connection.services
    shard = services.groups.runtime.shards.get(committer.offsets_partition)
    if shard is None:
        return False
    staged = apply_commit(shard, committer, wanted, services.clock.wall_ms())
    if staged is None:
        return False
    records, size_bytes = staged
    connection.take_place(request)
    shard.stage(records, size_bytes, request)
    return True


def _recognise(request: CommitRequest, sole_start: bytes | None) -> Known | None:
    """What a request says; None if it is unusual, or names what does not exist. One that is for one partition
    will be known by its start."""
    route, recognised = request.route, request.connection.recognised
    table = recognised[route]
    commit = read_commit(request.buffer, request.body, request.stop, route.version)
    if commit is None:
        return None
    head, offsets, answer = commit
    # Heads are kept in tuples, so that none is taken for the beginning of another request.
    committer = table.get((head,)) or _meet(request, head)
    if committer is None:
        return None
    wanted: list[Wanted] = []
    for named, partition, offset, leader_epoch, metadata in offsets:
        place = table.get((head, named, partition)) or _find(request, committer, head, named, partition)
        if place is None:
            return None
        wanted.append((place, offset, leader_epoch, metadata))
    if sole_start is not None and is_sole(commit):
        recognised.remember(route, sole_start, (committer, wanted[0][0], answer))
    return committer, wanted, answer


def _meet(request: CommitRequest, head: bytes) -> Committer | None:
    """Who commits, by the head of its requests."""
    said = read_head(head, request.route.version)
    if said is None:
        return None
    index = request.connection.services.groups.partition_of(said[0])
    if index is None or not request.connection.decisions.shows(Operation.READ, ResourceType.GROUP, said[0]):
        return None
    committer = Committer(*said, index)
    request.connection.recognised.remember(request.route, (head,), committer)
    return committer


def _find(
    request: CommitRequest, committer: Committer, head: bytes, named: bytes, partition: int
) -> Place | None:
    """A partition that exists, under the name or id that the committer's requests have for it."""
    image = request.connection.services.metadata.image
    version = request.route.version
    if version >= TOPIC_IDS_FROM:
        topic = image.topics_by_id.get(TopicId(named))
    else:
        name = topic_name(named, version)
        topic = None if name is None else image.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return None
    if not request.connection.decisions.shows(Operation.READ, ResourceType.TOPIC, topic.name):
        return None
    place = place_of(committer.group_id, topic.name, partition, topic.topic_id)
    request.connection.recognised.remember(request.route, (head, named, partition), place)
    return place
