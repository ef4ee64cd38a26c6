"""Commits of offsets, of which there are more than of anything else that groups do, by a shorter way.

A consumer repeats itself: the same member commits the same partitions all day, and only the offsets change.
So what a commit's fixed parts mean (whose it is, which partition of `__consumer_offsets` holds the group, the
key of each record) is worked out once and kept by the bytes that were sent, until the topics change. What can
change from one commit to the next is asked each time: whether the group lets it pass, and whether the record
can be stored. A commit that is refused, in part or as a whole, or that is unusual in any way goes the general
way instead (`machine`), and nothing has changed by then; so this one knows no errors but a failed write.

State and records are the same as the general way's: a test compares both. The records are written with others
of the same turn of the loop.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from millrace.coordinator.runtime import RECORD_OVERHEAD, Shard
from millrace.core.clock import Clock
from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.groups.commands import CommittedOffset
from millrace.groups.machine import GroupMachine
from millrace.groups.records import OFFSET_KEY, OFFSET_VALUE
from millrace.groups.service import Groups
from millrace.metadata.image import TopicState
from millrace.metadata.persistent_map import PersistentMap
from millrace.metadata.service import Metadata
from millrace.wire.commit_codec import (
    TOPIC_IDS_FROM,
    is_sole,
    read_commit,
    read_head,
    read_sole,
    topic_name,
)
from millrace.wire.framing import uvarint

KNOWN_MAX: Final = 50_000
"""Committers and their partitions that are remembered; then all are forgotten and learnt anew."""
NO_EXPIRY: Final = -1

_NAME: Final = struct.Struct(">h")
_VALUE: Final = struct.Struct(">hqibq")
"""Version, offset, leader epoch, length of no metadata, time of the commit."""
_VALUE_START: Final = struct.Struct(">hqi")
_TIME: Final = struct.Struct(">q")
_LENGTH_MAX: Final = 5
"""Bytes that the length of metadata takes."""
_new_tuple: Final = tuple.__new__


class Place(NamedTuple):
    """A partition of a topic as one group sees it."""

    topic: str
    partition: int
    topic_id: TopicId
    key: bytes
    """Of its record."""
    value_end: bytes
    """The end of each of its records' values: the tags, with the topic's id."""
    size_bytes: int
    """At most, of a record without metadata."""


class Committer:
    """Who commits, as its requests say, and what it has committed to."""

    __slots__ = ("generation", "group_id", "index", "instance_id", "member_id", "places", "version")

    def __init__(
        self,
        version: int,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        index: int,
    ) -> None:
        self.version = version
        """Of its requests."""
        self.group_id = group_id
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id
        self.index = index
        """Of the partition of `__consumer_offsets` that holds the group."""
        self.places: dict[tuple[bytes, int], Place] = {}
        """By the topic as the requests name it, and partition."""


Wanted: TypeAlias = tuple[Place, int, int, bytes]
"""A partition, its offset, leader epoch and metadata."""
Read: TypeAlias = tuple[Committer, list[Wanted], list[bytes]]
"""Who commits what, and what the answer has around its error codes."""
Applied: TypeAlias = tuple[Shard, list[tuple[bytes, bytes | None]], int]
"""What `Shard.stage` is to be given at once."""


class QuickCommits:
    """All committers that this broker has met, by version and by what their requests begin with."""

    def __init__(self, groups: Groups, metadata: Metadata, clock: Clock) -> None:
        self._groups = groups
        self._shards = groups.runtime.shards
        self._metadata = metadata
        self._clock = clock
        self._known: dict[tuple[int, bytes], Committer] = {}
        self._sole: dict[tuple[int, bytes], tuple[Committer, Place, list[bytes]]] = {}
        """Requests with one partition, by all that they have before its offset."""
        self._topics: PersistentMap[str, TopicState] | None = None
        """What the known ones were looked up in."""
        self._known_count = 0

    def read(self, buffer: memoryview, position: int, end: int, version: int) -> Read | None:
        """What a request says; None if it is unusual, or names what does not exist."""
        if self._topics is not self._metadata.image.topics:
            self._forget_all()
        sole = read_sole(buffer, position, end, version)
        if sole is not None:
            start, offset, leader_epoch = sole
            seen = self._sole.get((version, start))
            if seen is not None:
                committer, place, answer = seen
                return committer, [(place, offset, leader_epoch, b"")], answer
        commit = read_commit(buffer, position, end, version)
        if commit is None:
            return None
        head, offsets, answer = commit
        found = self._known.get((version, head)) or self._meet(version, head)
        if found is None:
            return None
        places = found.places
        wanted: list[Wanted] = []
        for named, partition, offset, leader_epoch, metadata in offsets:
            known = places.get((named, partition)) or self._find(found, named, partition)
            if known is None:
                return None
            wanted.append((known, offset, leader_epoch, metadata))
        if sole is not None and is_sole(commit):
            self._count()
            self._sole[version, sole[0]] = (found, wanted[0][0], answer)
        return found, wanted, answer

    def commit(self, committer: Committer, wanted: Sequence[Wanted]) -> Applied | None:
        """Apply all of it, and say what is to be stored for it before anything else happens; None if that is
        for the general way to do, and then nothing has changed."""
        shard = self._shards.get(committer.index)
        if shard is None or not shard.takes_records:
            return None
        machine = shard.machine
        assert isinstance(machine, GroupMachine), machine
        group_id, generation = committer.group_id, committer.generation
        group = machine.groups.get(group_id)
        if group is None:
            if generation >= 0:
                return None
        elif (
            group.check_commit(
                member_id=committer.member_id, instance_id=committer.instance_id, generation=generation
            )
            is not None
        ):
            return None
        now_ms = self._clock.wall_ms()
        records: list[tuple[bytes, bytes | None]] = []
        committed: list[tuple[str, int, CommittedOffset]] = []
        size_bytes = 0
        for place, offset, leader_epoch, raw in wanted:
            topic, partition, topic_id, key, value_end, record_bytes = place
            size_bytes += record_bytes
            metadata = ""
            if raw:
                try:
                    metadata = raw.decode()
                except UnicodeDecodeError:
                    return None
                if len(metadata) > machine.settings.offset_metadata_max:
                    return None
                size_bytes += len(raw) + _LENGTH_MAX
                value = _VALUE_START.pack(OFFSET_VALUE, offset, leader_epoch) + uvarint(len(raw) + 1) + raw
                value += _TIME.pack(now_ms) + value_end
            else:
                value = _VALUE.pack(OFFSET_VALUE, offset, leader_epoch, 1, now_ms) + value_end
            records.append((key, value))
            # A named tuple's own constructor costs twice as much.
            stored = _new_tuple(
                CommittedOffset, (offset, leader_epoch, metadata, now_ms, NO_EXPIRY, topic_id)
            )
            committed.append((topic, partition, stored))
        if size_bytes > shard.batch_bytes_max:
            return None
        # From here on as the machine's `apply`.
        offsets = machine.offsets
        for topic, partition, stored in committed:
            offsets.put(group_id, topic, partition, stored)
        if group is None:
            machine.add_offsets_only(group_id)
        elif generation >= 0:
            shard.set_timers(group.committed(committer.member_id, now_ms))
        return shard, records, size_bytes

    def _meet(self, version: int, head: bytes) -> Committer | None:
        said = read_head(head, version)
        if said is None:
            return None
        index = self._groups.partition_of(said[0])
        if index is None:
            return None
        self._count()
        committer = self._known[version, head] = Committer(version, *said, index)
        return committer

    def _find(self, committer: Committer, named: bytes, partition: int) -> Place | None:
        """A partition that exists, under the name or id that the committer's requests have for it."""
        image = self._metadata.image
        if committer.version >= TOPIC_IDS_FROM:
            topic = image.topics_by_id.get(TopicId(named))
        else:
            name = topic_name(named, committer.version)
            topic = None if name is None else image.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        self._count()
        key = OFFSET_KEY + _text(committer.group_id) + _text(topic.name) + partition.to_bytes(4, "big")
        topic_id = topic.topic_id
        # One tagged field, number 0: the topic's id.
        value_end = b"\0" if topic_id == NO_TOPIC_ID else b"\1\0" + uvarint(len(topic_id)) + topic_id
        size_bytes = len(key) + _VALUE.size + len(value_end) + RECORD_OVERHEAD
        place = committer.places[named, partition] = Place(
            topic.name, partition, topic_id, key, value_end, size_bytes
        )
        return place

    def _count(self) -> None:
        self._known_count += 1
        if self._known_count > KNOWN_MAX:
            self._forget_all()

    def _forget_all(self) -> None:
        self._known.clear()
        self._sole.clear()
        self._known_count = 0
        self._topics = self._metadata.image.topics


def _text(text: str) -> bytes:
    raw = text.encode()
    return _NAME.pack(len(raw)) + raw
