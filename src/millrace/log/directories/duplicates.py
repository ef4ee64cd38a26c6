"""Decides at the start which of several directories of a partition counts, by the names that a move left (see
`moving` for those) and by what lies in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from millrace.log.directories.log_copies import read_origins
from millrace.log.directories.new_logs import is_in_the_way
from millrace.log.directories.survey import Survey
from millrace.log.disk.volume import Volume
from millrace.log.errors import DuplicateLog
from millrace.log.partition.layout import deleted_directory_name, stray_directory_name
from millrace.log.segments import checkpoints

logger: Final = logging.getLogger(__name__)

BelongsTo = Callable[[str, TopicId], bool | None]
"""Whether the metadata has a topic with this name and id; None if it says nothing about that."""


class Verdict(NamedTuple):
    """What the metadata says of a topic, for a thread that cannot ask."""

    topic: str
    topic_id: TopicId
    belongs: bool | None


class Surveyed(NamedTuple):
    """A data directory and what was found in it."""

    path: str
    unique: str
    """A part for the names of directories in it, so that they meet no others."""
    found: Survey


def ask_about(surveys: Sequence[Surveyed], belongs_to: BelongsTo) -> tuple[Verdict, ...]:
    """What the metadata says about logs that are in several directories."""
    places: dict[TopicPartition, list[TopicId]] = {}
    for _, _, found in surveys:
        for topic_partition, item in found.partitions.items():
            places.setdefault(topic_partition, []).append(item.topic_id)
        for future in found.futures:
            # A copy was made from a log and may be its successor: it counts as one more.
            places.setdefault(future.topic_partition, []).append(NO_TOPIC_ID)
    return tuple(
        Verdict(topic_partition.topic, topic_id, belongs_to(topic_partition.topic, topic_id))
        for topic_partition, topic_ids in places.items()
        if len(topic_ids) > 1
        for topic_id in topic_ids
        if topic_id != NO_TOPIC_ID
    )


def resolve_duplicates(volume: Volume, surveys: Sequence[Surveyed], known: Sequence[Verdict]) -> None:
    """Decide which directory of a partition counts. Runs in a thread, which has the surveys for itself."""
    belongs = {(topic, topic_id): verdict for topic, topic_id, verdict in known}
    for _, _, found in surveys:
        for original in found.moved:
            for path, _, other in surveys:
                for future in [each for each in other.futures if each[:2] == original[:2]]:
                    final_path = f"{path}/{future.topic_partition}"
                    volume.rename(future.directory, final_path)
                    volume.sync_directory(path)
                    other.futures.remove(future)
                    other.add(volume, future.topic_partition, final_path)
            if any(original.topic_partition in other.partitions for _, _, other in surveys):
                found.deleted.append(original.directory)
            else:
                logger.warning("%s is left alone: its copy is not there", original.directory)
    seen: dict[TopicPartition, Surveyed] = {}
    for surveyed in surveys:
        for topic_partition in list(surveyed.found.partitions):
            first = seen.get(topic_partition)
            if first is not None:
                _set_strays_aside(volume, topic_partition, first, surveyed, belongs)
            left = [each for each in (first, surveyed) if each and topic_partition in each.found.partitions]
            if len(left) > 1:
                seen[topic_partition] = _choose(volume, topic_partition, *left)
            elif left:
                seen[topic_partition] = left[0]
            else:
                del seen[topic_partition]


def _set_strays_aside(
    volume: Volume,
    topic_partition: TopicPartition,
    first: Surveyed,
    second: Surveyed,
    belongs: Mapping[tuple[str, TopicId], bool | None],
) -> None:
    """Of the logs of two topics, keep the one whose topic exists. A disk was away while its topic was deleted
    and made again: its log belongs to no topic, but may be all that is left of the old one."""
    found = [(each, each.found.partitions[topic_partition]) for each in (first, second)]
    topic_ids = [item.topic_id for _, item in found]
    if topic_ids[0] == topic_ids[1] or NO_TOPIC_ID in topic_ids:
        return
    verdicts = [belongs.get((topic_partition.topic, topic_id)) for topic_id in topic_ids]
    for (surveyed, item), verdict in zip(found, verdicts, strict=True):
        if verdict is False or (verdict is None and True in verdicts):
            aside = f"{surveyed.path}/{stray_directory_name(topic_partition, surveyed.unique)}"
            volume.rename(item.directory, aside)
            volume.sync_directory(surveyed.path)
            del surveyed.found.partitions[topic_partition]
            surveyed.found.has_strays = True
            logger.warning(
                "%s is a log of a topic that does not exist, with the id %s: it is kept as %s",
                item.directory,
                item.topic_id.hex(),
                aside,
            )


def _choose(volume: Volume, topic_partition: TopicPartition, first: Surveyed, second: Surveyed) -> Surveyed:
    for winner, loser in ((first, second), (second, first)):
        path = winner.found.partitions[topic_partition].directory
        origins = read_origins(volume, path)
        identity = checkpoints.read_properties(volume, f"{loser.path}/{checkpoints.META_PROPERTIES}") or {}
        if identity.get("directory.id", "") in origins or _was_never_a_log(volume, topic_partition, loser):
            stale = loser.found.partitions.pop(topic_partition).directory
            logger.info("%s is not needed: %s counts", stale, path)
            doomed = f"{loser.path}/{deleted_directory_name(topic_partition, loser.unique)}"
            volume.rename(stale, doomed)
            loser.found.deleted.append(doomed)
            return winner
    raise DuplicateLog(
        first.found.partitions[topic_partition].directory, second.found.partitions[topic_partition].directory
    )


def _was_never_a_log(volume: Volume, topic_partition: TopicPartition, surveyed: Surveyed) -> bool:
    """Whether this is what an attempt to make a log has left on a disk that failed or was full, so that the
    log was made on another one."""
    found = surveyed.found
    return found.recovery_points.get(topic_partition, 0) == 0 and not is_in_the_way(
        volume, found.partitions[topic_partition].directory
    )
