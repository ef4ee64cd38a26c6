"""Where a group's offsets shall go: what was asked for, worked out against what the logs hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import click
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millrace.cli import clients
from millrace.cli.group import share_groups
from millrace.cli.group import state as group_state
from millrace.cli.group.state import Partition
from millrace.cli.moments import (
    AtBeginning,
    AtEnd,
    AtOffset,
    AtTime,
    parse_duration_ms,
    parse_partitions,
    parse_timestamp_ms,
)
from millrace.cli.options import BrokerAddress
from millrace.core.durations import iso_duration_ms

_SHORT_DURATION: Final = re.compile(r"-?(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_TARGETS: Final = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
)


@dataclass(frozen=True, slots=True)
class AtCommitted:
    """Where the group is now."""


@dataclass(frozen=True, slots=True)
class ShiftedBy:
    """This many messages behind where the group is now, or before it if negative."""

    count: int


Target: TypeAlias = AtBeginning | AtEnd | AtOffset | AtTime | AtCommitted | ShiftedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOffset:
    """The old and the new offset of one partition; `note` says why the new one is not what was asked for."""

    topic: str
    partition: int
    old: int | None
    new: int
    note: str = ""


def target_of(options: Mapping[str, Any], *, now_ms: int) -> Target:
    """The one place that the options name; anything else is a usage error."""
    # We compare by identity, because `--to-offset 0` equals False.
    given = [name for name in _TARGETS if options[name] is not None and options[name] is not False]
    if len(given) != 1:
        every = ", ".join("--" + name.replace("_", "-") for name in _TARGETS)
        raise click.UsageError(f"say where to, by exactly one of {every}")
    value = options[given[0]]
    match given[0]:
        case "to_earliest":
            return AtBeginning()
        case "to_latest":
            return AtEnd()
        case "to_current":
            return AtCommitted()
        case "to_offset":
            return AtOffset(value)
        case "shift_by":
            return ShiftedBy(value)
        case "to_datetime":
            return AtTime(_parsed("--to-datetime", value, parse_timestamp_ms))
        case _:
            return AtTime(now_ms - _parsed("--by-duration", value, parse_any_duration_ms))


def parse_any_duration_ms(text: str) -> int:
    """`1h30m` or ISO 8601, `PT1H30M`; raises ValueError for anything else."""
    word = text.strip()
    if _SHORT_DURATION.fullmatch(word):
        return parse_duration_ms(word.removeprefix("-"))
    try:
        return iso_duration_ms(word)
    except ValueError:
        raise ValueError(f"{text!r} is not a duration such as 1h30m or PT1H30M") from None


def partitions_in_scope(
    admin: AdminClient, broker: BrokerAddress, group: str, topics: Iterable[str], *, is_share: bool = False
) -> list[Partition]:
    """The partitions that `TOPIC[:PARTITIONS]` words name; without a word, all with a committed offset, or of
    a share group."""
    words = list(topics)
    if not words:
        found = sorted(
            group_state.start_offsets(broker, group)
            if is_share
            else group_state.committed_offsets(admin, broker, group)
        )
        if not found:
            raise clients.RequestFailed(
                f"group {group} has no offsets; --topic names partitions to start with"
            )
        return found
    metadata = clients.cluster_metadata(admin, broker)
    wanted: dict[Partition, None] = {}
    for word in words:
        # A topic's name has no colon.
        name, separator, numbers = word.partition(":")
        if name not in metadata.topics:
            raise clients.RequestFailed(f"no such topic: {name}")
        known = sorted(metadata.topics[name].partitions)
        chosen = _parsed("--topic", numbers, parse_partitions) if separator else known
        absent = [number for number in chosen if number not in known]
        if absent:
            raise clients.RequestFailed(f"{name} has no partition {', '.join(map(str, absent))}")
        wanted |= dict.fromkeys((name, number) for number in chosen)
    return list(wanted)


def present_offsets(
    admin: AdminClient, broker: BrokerAddress, group: str, *, is_share: bool
) -> dict[Partition, int]:
    """Where the group is now: what it has committed, or where a share group begins."""
    if is_share:
        starts = group_state.start_offsets(broker, group)
        return {partition: offset for partition, offset in starts.items() if offset is not None}
    committed = group_state.committed_offsets(admin, broker, group)
    return {partition: offset for partition, (offset, _) in committed.items()}


def plan(
    admin: AdminClient,
    broker: BrokerAddress,
    committed: Mapping[Partition, int],
    partitions: list[Partition],
    target: Target,
) -> list[PlannedOffset]:
    """The new offset of each partition, never outside of what its log holds."""
    starts = group_state.log_offsets(admin, broker, partitions, OffsetSpec.earliest())
    ends = group_state.log_offsets(admin, broker, partitions, OffsetSpec.latest())
    by_time = (
        group_state.log_offsets(admin, broker, partitions, OffsetSpec.for_timestamp(target.timestamp_ms))
        if isinstance(target, AtTime)
        else {}
    )
    planned = []
    for partition in partitions:
        if partition not in ends:
            raise clients.RequestFailed(f"{partition[0]}:{partition[1]} is not there any more")
        old = committed.get(partition)
        wanted, note = _wanted(target, old, starts[partition], ends[partition], by_time.get(partition, -1))
        new = min(max(wanted, starts[partition]), ends[partition])
        if new != wanted:
            note = f"{wanted} is {'after the end' if new < wanted else 'before the start'}"
        planned.append(PlannedOffset(topic=partition[0], partition=partition[1], old=old, new=new, note=note))
    return planned


def execute(
    admin: AdminClient,
    broker: BrokerAddress,
    group: str,
    planned: Iterable[PlannedOffset],
    *,
    is_share: bool = False,
) -> None:
    if is_share:
        share_groups.alter(broker, group, {(each.topic, each.partition): each.new for each in planned})
        return
    wanted = [TopicPartition(each.topic, each.partition, each.new) for each in planned]
    request = ConsumerGroupTopicPartitions(group, wanted)
    future = admin.alter_consumer_group_offsets([request], request_timeout=broker.timeout_s)[group]
    answer = clients.answer_of(future, broker, subject=group)
    refused = [each for each in answer.topic_partitions or () if each.error is not None]
    if refused:
        reasons = [f"{each.topic}:{each.partition}: {clients.describe_error(each.error)}" for each in refused]
        raise clients.RequestFailed(f"{group}: {'; '.join(reasons)}")


def _wanted(target: Target, old: int | None, start: int, end: int, by_time: int) -> tuple[int, str]:
    match target:
        case AtBeginning():
            return start, ""
        case AtEnd():
            return end, ""
        case AtOffset(offset):
            return offset, ""
        case AtTime():
            return (by_time, "") if by_time >= 0 else (end, "no message since then: the end")
        case AtCommitted():
            return (old, "") if old is not None else (end, "no committed offset: the end")
        case ShiftedBy(count):
            return (old + count, "") if old is not None else (start, "no committed offset: the start")


def _parsed(option: str, text: str, parse: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None
