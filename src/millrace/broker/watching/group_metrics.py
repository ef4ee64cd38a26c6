"""Lag and health of groups in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.watching.group_reports import GroupReport


class GroupLagFigures(NamedTuple):
    """How far a group is behind in one partition."""

    group: str
    topic: str
    partition: str
    committed: int
    messages: int | None
    time_s: float | None


class MemberFigures(NamedTuple):
    """When a member last gave a sign of life."""

    group: str
    member: str
    client: str
    heartbeat_age_s: float | None
    fetch_age_s: float | None
    commit_age_s: float | None


class GroupFigures(NamedTuple):
    """How many groups there are by (type, state), how many members by group, and the figures of each
    partition and member."""

    counts: dict[tuple[str, str], int]
    members_by_group: dict[str, int]
    lags: list[GroupLagFigures]
    members: list[MemberFigures]


def group_figures(reports: list[GroupReport], now_ms: int) -> GroupFigures:
    def age_s(time_ms: int | None) -> float | None:
        return None if time_ms is None else max(0, now_ms - time_ms) / 1000

    figures = GroupFigures({}, {}, [], [])
    for group, members, partitions in reports:
        kind = (group.type_name, group.state_name)
        figures.counts[kind] = figures.counts.get(kind, 0) + 1
        figures.members_by_group[group.group_id] = len(members)
        for member in members:
            figures.members.append(
                MemberFigures(
                    group.group_id,
                    member.member_id,
                    member.client_id,
                    age_s(member.last_heartbeat_ms),
                    age_s(member.last_fetch_ms),
                    age_s(member.last_commit_ms),
                )
            )
        for each in partitions:
            if each.committed is not None:
                lag = each.lag
                figures.lags.append(
                    GroupLagFigures(
                        group.group_id,
                        each.topic,
                        str(each.partition),
                        each.committed.offset,
                        None if lag is None else lag.messages,
                        None if lag is None or lag.time_ms is None else lag.time_ms / 1000,
                    )
                )
    return figures


def group_families(groups: GroupFigures) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    counts = GaugeMetricFamily(
        "millrace_groups", "Groups that this broker coordinates.", labels=("type", "state")
    )
    for kind, count in sorted(groups.counts.items()):
        counts.add_metric(kind, count)
    yield counts
    members = GaugeMetricFamily("millrace_group_members", "Members of the group.", labels=("group",))
    for group, count in groups.members_by_group.items():
        members.add_metric((group,), count)
    yield members
    for name, text, attribute in (
        ("millrace_group_committed_offset", "The offset that the group goes on from.", "committed"),
        ("millrace_group_lag_messages", "Records that the group has not committed yet.", "messages"),
        ("millrace_group_lag_seconds", "Age of the first record that the group has not committed.", "time_s"),
    ):
        family = GaugeMetricFamily(name, text, labels=("group", "topic", "partition"))
        for lag in groups.lags:
            value = getattr(lag, attribute)
            if value is not None:
                family.add_metric((lag.group, lag.topic, lag.partition), value)
        yield family
    for what, text in (
        ("heartbeat", "Since the member's last heartbeat."),
        ("fetch", "Since the member's client id last fetched records from its host."),
        ("commit", "Since the member's last commit of offsets."),
    ):
        family = GaugeMetricFamily(
            f"millrace_group_member_{what}_age_seconds", text, labels=("group", "member", "client")
        )
        for member in groups.members:
            value = getattr(member, f"{what}_age_s")
            if value is not None:
                family.add_metric((member.group, member.member, member.client), value)
        yield family
