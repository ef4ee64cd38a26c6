"""What a group's history must show: nothing skipped, one owner at a time, repeats only where allowed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.compat.groups.members import Member, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    member: str
    partition: Partition
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    member: str
    is_after_failure: bool
    partition: Partition
    offset: int
    number: int
    at: float


def ownerships(members: Sequence[Member]) -> list[Ownership]:
    """Every stretch of time in which a member was sure to own a partition.

    A member that was killed or frozen knows nothing from then on: its stretch ends at that moment.
    """
    found: list[Ownership] = []
    for member in members:
        held: dict[Partition, float] = {}
        moments: list[tuple[float, str, Sequence[Sequence[Any]]]] = [
            (at, "failed", ()) for at in member.failed_at
        ]
        moments += [(event["at"], event["event"], event.get("partitions", ())) for event in member.events]
        for at, kind, named in sorted(moments, key=lambda moment: moment[0]):
            partitions = [(str(topic), int(number)) for topic, number in named]
            if kind == "assigned":
                for partition in partitions:
                    held.setdefault(partition, at)
                continue
            if kind in ("leaving", "failed"):
                partitions = list(held)
            elif kind not in ("revoked", "lost"):
                continue
            for partition in partitions:
                start = held.pop(partition, None)
                if start is not None:
                    found.append(Ownership(member=member.name, partition=partition, start=start, end=at))
        found += [
            Ownership(member=member.name, partition=partition, start=start, end=float("inf"))
            for partition, start in held.items()
        ]
    return found


def assert_one_owner_at_a_time(members: Sequence[Member]) -> None:
    stretches = sorted(ownerships(members), key=lambda each: (each.partition, each.start))
    assert stretches, "nobody ever owned anything"
    for earlier, later in itertools.pairwise(stretches):
        if earlier.partition == later.partition:
            assert earlier.end <= later.start, f"owned twice at once: {earlier} and {later}"


def processings(members: Sequence[Member]) -> list[Processing]:
    return [
        Processing(
            member=member.name,
            is_after_failure=any(at <= event["at"] for at in member.failed_at),
            partition=(topic, partition),
            offset=offset,
            number=number,
            at=event["at"],
        )
        for member in members
        for event in member.told("records")
        for topic, partition, offset, number in event["records"]
    ]


def assert_nothing_skipped(members: Sequence[Member], produced: set[int]) -> None:
    seen = {each.number for each in processings(members)}
    missing = sorted(produced - seen)
    assert not missing, f"{len(missing)} of {len(produced)} records were never processed: {missing[:10]}"
    assert seen <= produced, f"records from nowhere: {sorted(seen - produced)[:10]}"


def assert_repeats_only_after_failures(members: Sequence[Member]) -> None:
    """Members that never failed process a record once; what one had committed is not processed again."""
    failed = {member.name: member for member in members if member.failed_at}
    by_name = {member.name: member for member in members}
    by_number: dict[int, list[Processing]] = {}
    for each in processings(members):
        by_number.setdefault(each.number, []).append(each)
    for number, found in by_number.items():
        healthy = [
            each
            for each in found
            if each.member not in failed and not _was_refused(by_name[each.member], each.at)
        ]
        assert len(healthy) <= 1, f"record {number} was processed twice by members that never failed: {found}"
        for earlier in found:
            if earlier.member in failed and not earlier.is_after_failure:
                again = [each for each in found if each.at > earlier.at]
                committed = _committed_before_failure(failed[earlier.member], earlier.partition)
                assert not again or earlier.offset >= committed, (
                    f"record {number} was committed (up to {committed}) and processed again: {found}"
                )


def assert_one_member_per_generation(members: Sequence[Member]) -> None:
    """For clients that tell their generation: a record belongs to one member in it."""
    owners: dict[tuple[int, str, int], str] = {}
    for member in members:
        for event in member.told("records"):
            for topic, partition, _, _ in event["records"]:
                key = (event["generation"], topic, partition)
                owner = owners.setdefault(key, member.name)
                assert owner == member.name, f"{key} was processed by {owner} and by {member.name}"


def _was_refused(member: Member, at: float) -> bool:
    """Whether a commit after `at` was refused for good, and was told so: what it covered comes again."""
    return any(
        event["at"] >= at and "rebalance" not in event["error"].lower()
        for event in member.told("commit_failed")
    )


def _committed_before_failure(member: Member, partition: Partition) -> int:
    first_failure = min(member.failed_at)
    return max(
        (
            offset
            for event in member.told("committed")
            if event["at"] <= first_failure
            for topic, number, offset in event["offsets"]
            if (topic, number) == partition
        ),
        default=-1,
    )
