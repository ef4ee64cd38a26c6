"""Commits of offsets whose names are known already: more of them happen than of anything else in groups.

A consumer repeats itself: the same member commits the same partitions all day, and only the offsets change.
`broker/handlers/groups/quick_commits.py` keeps what the repeated parts mean: it brings a `Committer` and its
`Place`s, and saves the command, the decision and the keys of the records. The rules are the machine's own: it
says whether the commit may pass, and applies the records. A commit that is refused, in part or as a whole, is
left to the general way, and nothing has changed by then; so this way knows no errors but a failed write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.coordinator.runtime import RECORD_OVERHEAD, Shard
from millrace.core.ids import TopicId
from millrace.groups.commands import CommittedOffset
from millrace.groups.machine import GroupMachine
from millrace.groups.records import offset_bytes_max, offset_key, offset_tags, offset_value
from millrace.wire.messages.group_records import OffsetCommitKey

NO_EXPIRY: Final = -1
_new_tuple: Final = tuple.__new__


@dataclass(slots=True)
class Committer:
    """Who commits, as its requests say."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets_partition: int
    """The partition of `__consumer_offsets` that holds the group."""


Place: TypeAlias = tuple[OffsetCommitKey, bytes, TopicId, bytes, int]
"""A partition of a topic as one group sees it: the key of its record, the same as bytes, the topic's id, the
end of each of its records' values, and how large a record without metadata is at most. A plain tuple, because
each commit takes it apart, and named ones take three times as long."""
Wanted: TypeAlias = tuple[Place, int, int, bytes]
"""A partition, its offset, leader epoch and metadata."""
Staged: TypeAlias = tuple[list[tuple[bytes, bytes | None]], int]
"""Records and their size, to be given to `Shard.stage` at once."""


def place_of(group_id: str, topic: str, partition: int, topic_id: TopicId) -> Place:
    """All that repeats in a group's commits of one partition."""
    key, tags = offset_key(group_id, topic, partition), offset_tags(topic_id)
    return (
        OffsetCommitKey(group=group_id, topic=topic, partition=partition),
        key,
        topic_id,
        tags,
        offset_bytes_max(key, b"", tags) + RECORD_OVERHEAD,
    )


def apply_commit(shard: Shard, committer: Committer, wanted: Sequence[Wanted], now_ms: int) -> Staged | None:
    """Apply a commit if all of it may pass; the caller has to stage the records before anything else happens.
    None if the general way has to serve it, and then nothing has changed."""
    if not shard.takes_records:
        return None
    machine = shard.machine
    assert isinstance(machine, GroupMachine), machine
    group = machine.groups.get(committer.group_id)
    if machine.check_commit(group, committer) is not None:
        return None
    encoded: list[tuple[bytes, bytes | None]] = []
    applied: list[tuple[OffsetCommitKey, CommittedOffset]] = []
    size_bytes = 0
    for place, offset, leader_epoch, raw in wanted:
        key, key_bytes, topic_id, tags, record_bytes = place
        size_bytes += record_bytes
        metadata = ""
        if raw:
            try:
                metadata = raw.decode()
            except UnicodeDecodeError:
                return None
            if len(metadata) > machine.settings.offset_metadata_max:
                return None
            size_bytes += len(raw)
        encoded.append((key_bytes, offset_value(offset, leader_epoch, raw, now_ms, tags)))
        # A named tuple's own constructor costs twice as much.
        committed = _new_tuple(CommittedOffset, (offset, leader_epoch, metadata, now_ms, NO_EXPIRY, topic_id))
        applied.append((key, committed))
    if size_bytes > shard.batch_bytes_max:
        return None
    if group is not None and committer.generation >= 0:
        shard.timers.change(group.committed(committer.member_id, now_ms))
    for key, committed in applied:
        machine.apply_offset(key, committed)
    return encoded, size_bytes
