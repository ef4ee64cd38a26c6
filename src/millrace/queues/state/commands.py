"""What can be asked of the coordinator of share state, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.queues.share_partition.model import Delta, ShareKey

DONE: Final = object()
"""The response of commands that have nothing to tell."""
NO_EPOCH: Final = -1
"""The epoch of a request that is not to be fenced."""
NO_OFFSET: Final = -1


class InitializeState(NamedTuple):
    """Give a share partition state, or begin its state anew."""

    key: ShareKey
    state_epoch: int
    start_offset: int


class ReadState(NamedTuple):
    """All that is stored; a new leader of the partition fences those before it by asking."""

    key: ShareKey
    leader_epoch: int


class WriteState(NamedTuple):
    """Change what is stored."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    delta: Delta


class DeleteState(NamedTuple):
    """Forget a share partition's state."""

    key: ShareKey


class ReadSummary(NamedTuple):
    """How far the group has come, without the runs."""

    key: ShareKey


class TopicsDeleted(NamedTuple):
    """These topics are gone, and with them the state of all share partitions of theirs."""

    topic_ids: Sequence[TopicId]


class RewriteSnapshots(NamedTuple):
    """Write anew the oldest snapshots, no more than `records_max`, of those that were the newest of their
    share partitions when the log had `snapshot_number` of them. Answers how many were written."""

    snapshot_number: int
    records_max: int


class StateSummary(NamedTuple):
    """How far a group has come in a share partition."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    """-1 while nobody has decided where the group begins."""
    delivery_complete_count: int = -1
    """How many records from the start offset on are done; -1 while that is not known."""


@dataclass(slots=True, kw_only=True)
class StateSettings:
    """What the broker's settings say about the state of share groups."""

    updates_per_snapshot: int = 500
    write_timeout_ms: int = 5_000
    prune_interval_ms: int = 300_000
    rewrite_interval_ms: int = 300_000
    """How old a snapshot gets before it is written anew, so that the records behind it can go."""
