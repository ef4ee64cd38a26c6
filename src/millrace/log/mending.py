"""Puts a healthy replica's batches in the place of damaged ones. The bytes of a log are the same on every
replica, so they fit exactly or are not the right ones."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millrace.core.errors import MillraceError
from millrace.log.batch_checks import split_batches
from millrace.log.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segment import Segment
from millrace.wire.batch_header import LENGTH_END

if TYPE_CHECKING:
    from millrace.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def damage_of(log: PartitionLog) -> list[tuple[Segment, DamagedRange]]:
    """Everything that is in quarantine, oldest first."""
    return [(segment, damaged) for segment in log.segments for damaged in segment.damage]


async def mend(log: PartitionLog, segment: Segment, damaged: DamagedRange, records: memoryview) -> bool:
    """Write a replica's batches over a damaged range; False if they do not fit, or the range is gone."""
    copy = _exactly(damaged, records)
    if copy is None or damaged not in segment.damage or segment not in log.segments:
        return False
    segment.file.write_at(damaged.position, copy)
    log.sync_later(segment.file.path)
    # The quarantine ends when the new bytes are on disk, not before.
    await log.flush()
    if damaged not in segment.damage or log.is_closed:
        return False
    segment.damage = tuple(other for other in segment.damage if other != damaged)
    save_damage(log.home.volume, segment.path(QUARANTINE_SUFFIX), segment.damage)
    logger.info(
        "%s: offsets %d to %d are back from a replica",
        log.topic_partition,
        damaged.first_offset,
        damaged.next_offset - 1,
    )
    return True


def _exactly(damaged: DamagedRange, records: memoryview) -> memoryview | None:
    """The batches of the damaged offsets, if they are whole, sound and as many bytes."""
    try:
        headers = split_batches(records, at_least=damaged.first_offset)
    except MillraceError:
        return None
    start = end = 0
    for position, header in headers:
        if header[0] + header[6] >= damaged.next_offset:
            break
        end = position + LENGTH_END + header[1]
    return records[start:end] if end - start == damaged.size_bytes else None
