"""How far consumer groups are behind, looked at again and again: ends less committed offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from millrace.client.broker_client import LATEST, READ_UNCOMMITTED, BrokerClient
from millrace.client.errors import BrokerRefused
from millrace.core.ids import TopicPartition
from millrace.pipeline.analytics.measurement import Measure, Measurement
from millrace.pipeline.sink.options import PREFIX_DEFAULT as SINK_GROUPS
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.list_groups import ListGroupsRequest

_OFFSETS_TOPIC: Final = "__consumer_offsets"
_LIST_GROUPS_VERSIONS: Final = (4, 5)


def list_groups(client: BrokerClient) -> list[str]:
    """All groups that any coordinator knows, except those in which a sink marks what it has written."""
    topic = client.metadata([_OFFSETS_TOPIC]).get(_OFFSETS_TOPIC)
    if topic is None:
        return []
    coordinators = sorted({info.leader for info in topic.partitions.values() if info.leader >= 0})
    found: set[str] = set()
    for node_id in coordinators:
        version = client.version(ApiKey.LIST_GROUPS, *_LIST_GROUPS_VERSIONS, node_id)
        answer = client.request(ApiKey.LIST_GROUPS, version, ListGroupsRequest(), node_id)
        if answer.error_code:
            raise BrokerRefused(answer.error_code, "groups")
        found.update(group.group_id for group in answer.groups)
    return sorted(name for name in found if not name.startswith(f"{SINK_GROUPS}-"))


def sample(
    client: BrokerClient, run_ms: int, topics: Sequence[str], groups: Sequence[str]
) -> list[Measurement]:
    """One look: the lag of each group in each partition for which it has committed an offset."""
    infos = client.metadata(topics)
    partitions = [TopicPartition(name, number) for name, info in infos.items() for number in info.partitions]
    # We ask for committed offsets first: a lag may then be too large by what arrives in between, but never
    # below zero.
    committed = {group: client.committed(group, partitions) for group in groups}
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)
    now_ms = time.time_ns() // 1_000_000
    return [
        Measurement(
            run_ms=run_ms,
            topic=partition.topic,
            measure=Measure.LAG,
            value=float(max(0, ends[partition].offset - offset)),
            partition=partition.partition,
            time_ms=now_ms,
            label=group,
        )
        for group, offsets in committed.items()
        for partition, offset in offsets.items()
    ]


def watch(
    look: Callable[[], list[Measurement]], *, duration_s: float, every_s: float
) -> Iterator[list[Measurement]]:
    """Look now, and then every so often until the duration is over."""
    began = time.monotonic()
    looks = 0
    while True:
        yield look()
        looks += 1
        wait_s = began + looks * every_s - time.monotonic()
        if looks * every_s > duration_s:
            return
        # A look that took longer than the interval is followed by the next one at once.
        time.sleep(max(0.0, wait_s))
