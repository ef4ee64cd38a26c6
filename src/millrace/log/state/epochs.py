"""Which leader epoch began at which offset: the `leader-epoch-checkpoint` file of a partition.

A missing or half-written file means that the epochs are unknown, never that they start at 0. The batches
carry their epochs, so an unknown history is read from the log again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.core.ids import NO_EPOCH
from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing
from millrace.log.segments.checkpoints import format_lines, parse_lines
from millrace.wire.batch_header import BatchHeader

if TYPE_CHECKING:
    from millrace.log.segments.segment import Segment

FILE_NAME: Final = "leader-epoch-checkpoint"
_CHECKED_MAX: Final = 4


class EpochStart(NamedTuple):
    """A leader epoch, and the offset of its first record."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """A partition's leader epochs: both epochs and start offsets grow. The owner saves after a change."""

    __slots__ = ("_starts", "latest")

    def __init__(self, starts: list[EpochStart] | None = None) -> None:
        self._starts: list[EpochStart] = []
        self.latest: int = NO_EPOCH
        for start in starts or ():
            self.assign(start.epoch, start.start_offset)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; what contradicts it goes. True if something changed."""
        if epoch < 0:
            return False
        starts = self._starts
        if starts and starts[-1].epoch == epoch and starts[-1].start_offset <= start_offset:
            return False
        while starts and (starts[-1].epoch >= epoch or starts[-1].start_offset >= start_offset):
            starts.pop()
        starts.append(EpochStart(epoch, start_offset))
        self.latest = epoch
        return True

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and the offset where it ends; (-1, -1) if unknown."""
        if epoch == NO_EPOCH or not self._starts:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._starts, epoch, key=lambda start: start.epoch)
        if above == len(self._starts):
            return NO_EPOCH, -1
        known = self._starts[above - 1].epoch if above else epoch
        return known, self._starts[above].start_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was written, or -1."""
        above = bisect_right(self._starts, offset, key=lambda start: start.start_offset)
        return self._starts[above - 1].epoch if above else NO_EPOCH

    def truncate_from_end(self, offset: int) -> bool:
        """Forget the epochs that begin at or after `offset`."""
        before = len(self._starts)
        while self._starts and self._starts[-1].start_offset >= offset:
            self._starts.pop()
        self.latest = self._starts[-1].epoch if self._starts else NO_EPOCH
        return len(self._starts) != before

    def truncate_from_start(self, offset: int) -> bool:
        """Forget the epochs that end before `offset`; the one that holds it begins there."""
        above = bisect_right(self._starts, offset, key=lambda start: start.start_offset)
        if above == 0 or self._starts[0].start_offset == offset:
            return False
        self._starts[:above] = [EpochStart(self._starts[above - 1].epoch, offset)]
        return True

    def clear(self) -> None:
        self._starts.clear()
        self.latest = NO_EPOCH


def load_epochs(volume: Volume, directory: str) -> LeaderEpochs | None:
    """The stored epochs, or None if there is no file or it cannot be understood."""
    try:
        data = volume.read_bytes(f"{directory}/{FILE_NAME}")
    except FileMissing:
        return None
    rows = parse_lines(data, fields=2)
    if rows is None:
        return None
    try:
        starts = [EpochStart(int(epoch), int(start_offset)) for epoch, start_offset in rows]
    except ValueError:
        return None
    if any(a.epoch >= b.epoch or a.start_offset > b.start_offset for a, b in pairwise(starts)):
        return None
    return LeaderEpochs(starts)


def is_contradicted(epochs: LeaderEpochs, segments: Sequence[Segment], *, end_offset: int) -> bool:
    """Whether the batches know better where one of the newest epochs began. Kafka's files have no checksum,
    and after a wrong digit a follower would cut its log in the wrong place. The scrub checks older epochs."""
    starts = epochs.starts
    for number in range(max(len(starts) - _CHECKED_MAX, 0), len(starts)):
        epoch, start_offset = starts[number]
        if start_offset > end_offset:
            return True
        found = _header_at(segments, start_offset)
        if (
            found is not None
            and 0 <= found.leader_epoch != epoch
            and (found.base_offset <= start_offset or found.leader_epoch < epoch)
        ):
            return True
        # The first known epoch may have begun earlier: the log's start moves along within it.
        before = _header_at(segments, start_offset - 1) if number and start_offset > 0 else None
        if before is not None and before.base_offset < start_offset and before.leader_epoch >= epoch:
            return True
    return False


def _header_at(segments: Sequence[Segment], offset: int) -> BatchHeader | None:
    """The header of the batch that holds an offset, or of the first one behind it."""
    number = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    for segment in segments[number:]:
        found = segment.locate(offset) if segment.size_bytes else None
        if found is not None:
            return next(segment.headers(found.position))[1]
    return None


def save_epochs(volume: Volume, directory: str, epochs: LeaderEpochs, *, durable: bool) -> None:
    data = format_lines([f"{start.epoch} {start.start_offset}" for start in epochs.starts])
    volume.write_bytes(f"{directory}/{FILE_NAME}", data, durable=durable)


def epochs_from_batches(segments: Sequence[Segment]) -> LeaderEpochs:
    """The leader epochs as the batches themselves carry them."""
    epochs = LeaderEpochs()
    for segment in segments:
        if segment.size_bytes == 0:
            continue
        for _, fields in segment.plain_headers():
            base_offset, _, epoch, _, _, _, _, _, _, _, _, _, _ = fields
            if epoch > epochs.latest:
                epochs.assign(epoch, base_offset)
    return epochs
