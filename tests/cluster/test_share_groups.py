"""Share consumers while the leaders of their records and of their state are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import pytest

from millrace.core.ids import TopicId
from millrace.queues.share_partition.model import ShareKey
from millrace.queues.state.records import coordinator_key
from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.cluster.share_members import Ledger, ShareMember
from tests.compat.queues.share_groups import set_group
from tests.harness.process import eventually
from tests.harness.protocol import topic_id
from tests.harness.raw import FIND_COORDINATOR, RawConnection
from tests.harness.topics import unique_name
from tests.harness.writer import NumberedWriter, number_in

pytestmark = pytest.mark.slow

MEMBERS = 32
PARTITIONS = 3
LOCK_S = 2.0
SLACK_S = 3.0
"""For a machine that does other things as well."""
GROUPS, STATE = "__consumer_offsets", "__share_group_state"

Outage = tuple[float, float]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster"),
        {
            "broker.session.timeout.ms": "6000",
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "1000",
            "share.coordinator.state.topic.num.partitions": "3",
        },
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


class Queue:
    """A topic, a group that reads it, and who leads what of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic, self.group = unique_name("jobs"), unique_name("workers")
        cluster.create_topic(self.topic, PARTITIONS)
        (broker, *_) = cluster.brokers.values()
        set_group(
            broker,
            self.group,
            share__auto__offset__reset="earliest",
            share__record__lock__duration__ms=str(round(LOCK_S * 1000)),
            share__delivery__count__limit="1000",
        )
        with RawConnection((broker.host, broker.port)) as connection:
            self._topic_id = topic_id(connection, self.topic)
        self.outages: list[Outage] = []

    def leader_of_data(self) -> int:
        return self.cluster.partitions(self.topic)[0].leader

    def leader_of_state(self) -> int:
        """The coordinator of the state of a partition that another broker leads, if there is one."""
        leaders = self.cluster.partitions(self.topic)
        found = [self._coordinator(index) for index in range(PARTITIONS)]
        for index, coordinator in enumerate(found):
            if coordinator != leaders[index].leader:
                return coordinator
        return found[0]

    def _coordinator(self, partition: int) -> int:
        key = coordinator_key(ShareKey(self.group, TopicId(self._topic_id.bytes), partition))
        (broker, *_) = self.cluster.brokers.values()
        with RawConnection((broker.host, broker.port)) as connection:
            answer = connection.call(FIND_COORDINATOR, 6, {"key_type": 2, "coordinator_keys": [key]})
        (found,) = answer["coordinators"]
        assert found["error_code"] == "none", found
        return int(found["node_id"])

    def kill(self, node: int, *, for_s: float) -> None:
        """Kill a broker, start it again once others have taken over, and wait until it is in sync."""
        killed_at = time.monotonic()
        self.cluster.brokers[node].kill()
        eventually(lambda: self._is_led_without(node), DEADLINE_S)
        self.outages.append((killed_at, time.monotonic()))
        time.sleep(for_s)
        self.cluster.brokers[node].start()
        for topic in (self.topic, STATE, GROUPS):
            eventually(partial(self.cluster.is_in_sync, topic), DEADLINE_S)

    def _is_led_without(self, node: int) -> bool:
        return all(
            view.leader not in (node, -1)
            for topic in (self.topic, STATE, GROUPS)
            for view in self.cluster.partitions(topic).values()
        )


def longest_hold_s(ledger: Ledger, outages: Sequence[Outage]) -> float:
    """How long a record lay still at most between a delivery and the next, or its acceptance, while
    everything was led."""
    longest = 0.0
    for place, deliveries in ledger.deliveries.items():
        times = [delivery.at for delivery in deliveries]
        if place in ledger.accepted:
            times.append(ledger.accepted[place])
        for before, after in pairwise(times):
            led_s = after - before
            for begin, end in outages:
                led_s -= max(min(after, end) - max(before, begin), 0.0)
            longest = max(longest, led_s)
    return longest


async def run(queue: Queue, ledger: Ledger) -> list[NumberedWriter]:
    stopping = asyncio.Event()
    addresses = {node: (broker.host, broker.port) for node, broker in queue.cluster.brokers.items()}
    members = [ShareMember(addresses, queue.group, queue.topic, ledger, number) for number in range(MEMBERS)]
    tasks = [asyncio.ensure_future(member.run(stopping)) for member in members]
    writers = [
        NumberedWriter(queue.cluster.bootstrap, queue.topic, index, pause_s=0.004)
        for index in range(PARTITIONS)
    ]

    def disturb() -> None:
        with ExitStack() as stack:
            for writer in writers:
                stack.enter_context(writer)
            eventually(lambda: ledger.done > 200, DEADLINE_S)
            for _ in range(2):
                queue.kill(queue.leader_of_data(), for_s=1)
                queue.kill(queue.leader_of_state(), for_s=1)
            before = ledger.done
            eventually(lambda: ledger.done > before + 200, DEADLINE_S)

    def is_all_done() -> bool:
        done = set(ledger.accepted) | set(ledger.unsure)
        return len(done) >= sum(writer.written for writer in writers)

    try:
        await asyncio.to_thread(disturb)
        # A record may be forgotten more than once.
        await asyncio.to_thread(eventually, is_all_done, 6 * LOCK_S + SLACK_S)
        # What is not known to count comes again in this time if it does not.
        await asyncio.sleep(LOCK_S + 0.5)
        await asyncio.to_thread(eventually, is_all_done, 6 * LOCK_S + SLACK_S)
    finally:
        stopping.set()
        await asyncio.gather(*tasks)
    return writers


def test_killed_leaders_lose_nothing_and_deliver_nothing_again(cluster: Cluster) -> None:
    queue, ledger = Queue(cluster), Ledger()
    writers = asyncio.run(run(queue, ledger))
    assert not ledger.wrong, (queue.outages, len(ledger.wrong), ledger.wrong[:5], ledger.errors)
    for partition, writer in enumerate(writers):
        assert not writer.failures, writer.failures[:3]
        numbers = {
            number_in(value, queue.topic, partition)
            for (found, _), value in ledger.values.items()
            if found == partition
        }
        assert numbers == set(range(writer.written)), "every record was delivered"
    assert any(len(each) > 1 for each in ledger.deliveries.values()), "some were forgotten"
    assert longest_hold_s(ledger, queue.outages) < 2 * LOCK_S + SLACK_S, ledger.errors
    print(
        ledger.errors, longest_hold_s(ledger, queue.outages), queue.outages, ledger.done, len(ledger.unsure)
    )  # DBG
