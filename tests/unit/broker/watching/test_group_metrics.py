"""Groups as Prometheus reads them: lag by partition, and how long ago members did what keeps them alive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.watching.group_metrics import group_families, group_figures
from millrace.broker.watching.group_reports import GroupReport, MemberHealth, PartitionReport
from millrace.groups.kinds import Group
from millrace.groups.lag import Lag

NOW_MS = 100_000


def report(name: str, members: list[MemberHealth], partitions: list[PartitionReport]) -> GroupReport:
    group = SimpleNamespace(group_id=name, type_name="classic", state_name="Stable")
    return GroupReport(cast("Group", group), members, partitions)


def member(name: str, *, heartbeat_ms: int | None, fetch_ms: int | None = None) -> MemberHealth:
    return MemberHealth(name, None, "client", "/host", heartbeat_ms, fetch_ms, None, {})


def partition(number: int, committed: int | None, lag: Lag | None) -> PartitionReport:
    stored: Any = None if committed is None else SimpleNamespace(offset=committed)
    return PartitionReport("orders", number, stored, lag, None)


def samples(*reports: GroupReport) -> dict[tuple[str, ...], float]:
    families = group_families(group_figures(list(reports), NOW_MS))
    return {
        (sample.name.removeprefix("millrace_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_groups_and_members_are_counted() -> None:
    found = samples(
        report("a", [member("m1", heartbeat_ms=NOW_MS)], []),
        report("b", [], []),
    )
    assert found["groups", "classic", "Stable"] == 2
    assert found["group_members", "a"] == 1
    assert found["group_members", "b"] == 0


def test_lag_is_told_where_it_is_known() -> None:
    found = samples(
        report(
            "a",
            [],
            [
                partition(0, 5, Lag(end_offset=15, messages=10, time_ms=2_500)),
                partition(1, 7, Lag(end_offset=9, messages=2, time_ms=None)),
                partition(2, 8, None),
                partition(3, None, None),
            ],
        )
    )
    lag = {key: value for key, value in found.items() if key[0].startswith(("group_lag", "group_committed"))}
    assert lag == {
        ("group_committed_offset", "a", "orders", "0"): 5,
        ("group_lag_messages", "a", "orders", "0"): 10,
        ("group_lag_seconds", "a", "orders", "0"): 2.5,
        ("group_committed_offset", "a", "orders", "1"): 7,
        ("group_lag_messages", "a", "orders", "1"): 2,
        ("group_committed_offset", "a", "orders", "2"): 8,
    }


def test_ages_of_members_are_left_out_where_nothing_is_known_and_never_negative() -> None:
    found = samples(report("a", [member("m", heartbeat_ms=NOW_MS + 5, fetch_ms=NOW_MS - 3_000)], []))
    assert found["group_member_heartbeat_age_seconds", "a", "m", "client"] == 0
    assert found["group_member_fetch_age_seconds", "a", "m", "client"] == 3.0
    assert ("group_member_commit_age_seconds", "a", "m", "client") not in found
