"""Share groups beside all other clients: members that come and go, keep records for too long and lose
answers, while brokers fail. In the end healthy members must finish every record."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.core.errors import MillraceError
from millrace.metadata.fold import image_of
from millrace.metadata.image import Image
from millrace.queues.share_partition.model import ShareKey, StoredState
from millrace.queues.share_partition.partition import SharePartition
from millrace.queues.state.records import coordinator_key
from millrace.queues.state.service import STATE_TOPIC, ShareState
from millrace.sim.clients.admin import set_group_config, set_topic_config
from millrace.sim.clients.client import GROUP, Client, ErrorAnswer
from millrace.sim.clients.reading import LATEST, fetch, list_offset, visible_records
from millrace.sim.clients.share_consumer import HEALTHY, Habits, ShareMember
from millrace.sim.cluster import Cluster, TooLate
from millrace.sim.history import DeadLettersRead, ShareGroupBegun, ShareGroupDone, ShareStateCompared
from millrace.sim.run import END_S, ORDERS, PARTITIONS, Run, Scenario
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)

LOCK_MS: Final = 4_000
DELIVERIES_MAX: Final = 6
SETTINGS: Final = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.delivery.count.limit": str(DELIVERIES_MAX),
    "share.coordinator.state.topic.num.partitions": "3",
}
DEAD_LETTERS: Final = "dlq.orders"
_ENABLED: Final = "errors.deadletterqueue.group.enable"
MEMBERS_COUNT: Final = 3
DESCRIBE_VERSION: Final = 1
FETCHES_APART: Final = 5
"""After how many fetches what leaders have in memory is compared with what is stored."""


class Terms:
    """Who leads a partition, and since when."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._revision = -1
        self._image: Image | None = None

    def leads(self, node_id: int, topic: str, partition: int) -> bool:
        state = self._now().partition(topic, partition)
        return state is not None and state.leader == node_id

    def _now(self) -> Image:
        snapshot = self._cluster.store.peek()
        if self._image is None or snapshot.revision != self._revision:
            self._revision, self._image = snapshot.revision, image_of(snapshot)
        return self._image

    def of(self, topic: str, partition: int, host: str) -> str:
        state = self._now().partition(topic, partition)
        if state is None:
            return ""
        node = next((each for each in self._cluster.nodes if each.node_id == state.leader), None)
        if node is None or node.host != host:
            return ""
        return f"{state.leader}/{state.leader_epoch}/{node.starts_count}"


class ShareGroup:
    """One share group of a run: its members, and its end."""

    def __init__(
        self, run: Run, name: str, habits: Habits, topic: str = ORDERS, *, dead_letters: str | None = None
    ) -> None:
        self.name = name
        self.topic = topic
        self._dead_letters = dead_letters
        self._run = run
        self._habits = habits
        self._members: list[ShareMember] = []
        self._terms = Terms(run.cluster)
        self._fetches_count = 0

    async def begin(self, members: int, configs: dict[str, str] | None = None) -> None:
        run = self._run
        configs = {"share.auto.offset.reset": "earliest", **(configs or {})}
        if self._dead_letters is not None:
            configs["errors.deadletterqueue.topic.name"] = self._dead_letters
        for key, value in configs.items():
            await run.by_admin(set_group_config(run.admin, self.name, key, value))
        run.cluster.history.add(
            ShareGroupBegun(
                at=run.admin.now(),
                group=self.name,
                topic=self.topic,
                deliveries_max=DELIVERIES_MAX,
                has_dead_letters=self._dead_letters is not None,
            )
        )
        for number in range(1, members + 1):
            client, process = run.cluster.client(f"{self.name}-{number}")
            member = ShareMember(
                client,
                self.name,
                [self.topic],
                self._term_of,
                pause_s=run.plan.workload.pause_s / 2,
                lock_s=LOCK_MS / 1000,
                habits=self._habits,
            )
            self._members.append(member)
            run.start(member, process)
        run.endings.append(self.end)

    async def end(self) -> None:
        """Let members be healthy until nothing is left, and note what brokers say of the group then."""
        run = self._run
        for member in self._members:
            member.habits = HEALTHY
        deadline = run.cluster.loop.time() + END_S
        found: dict[int, tuple[int, int]] = {}
        while True:
            run.cluster.stop_if_problem()
            try:
                found = await run.by_admin(describe(run.admin, self.name, self.topic))
            except (ConnectionFailed, ErrorAnswer):
                run.admin.forget_coordinator(GROUP, self.name)
            self._compare_state()
            if len(found) == len(PARTITIONS) and all(lag == 0 for _, lag in found.values()):
                break
            if run.cluster.loop.time() > deadline:
                raise TooLate(f"the share group {self.name} is not done in {END_S:g} s: {found}")
            await asyncio.sleep(1.0)
        for partition, (start, lag) in found.items():
            end = await run.by_admin(list_offset(run.admin, self.topic, partition, LATEST))
            run.cluster.history.add(
                ShareGroupDone(
                    at=run.admin.now(),
                    group=self.name,
                    topic=self.topic,
                    partition=partition,
                    start_offset=start,
                    lag=lag,
                    end_offset=end,
                )
            )
        await run.end(*self._members)
        if self._dead_letters is not None:
            values = await run.by_admin(read_values(run.admin, self._dead_letters))
            run.cluster.history.add(
                DeadLettersRead(at=run.admin.now(), group=self.name, values=tuple(values))
            )

    def _term_of(self, topic: str, partition: int, host: str) -> str:
        """Members ask for it with every fetch: while work is under way, there is state to compare."""
        self._fetches_count += 1
        if self._fetches_count % FETCHES_APART == 0:
            self._compare_state()
        return self._terms.of(topic, partition, host)

    def _compare_state(self) -> None:
        """Note what leaders have in memory, beside what the state's coordinator has, wherever nothing is on
        its way between them. Those who do not know yet that others lead have no say."""
        services = {
            node.node_id: node.broker.running.server.services
            for node in self._run.nodes
            if node.broker is not None and node.broker.running is not None
        }
        for node_id, leader in services.items():
            for key, share in leader.shares.groups.get(self.name, {}).items():
                rules = share.rules
                if (
                    rules is not None
                    and rules.is_stored
                    and share.is_served
                    and self._terms.leads(node_id, self.topic, key.partition)
                ):
                    index = leader.share_state.topic.partition_of(coordinator_key(key))
                    for other_id, coordinator in services.items():
                        if index is not None and self._terms.leads(other_id, STATE_TOPIC, index):
                            self._compare(key, share.leader_epoch, rules, coordinator.share_state)

    def _compare(self, key: ShareKey, leader_epoch: int, rules: SharePartition, state: ShareState) -> None:
        machine = state.machine_of(key)
        stored = None if isinstance(machine, MillraceError) else machine.states.get(key)
        if stored is None or stored.leader_epoch != leader_epoch:
            return
        found = StoredState(stored.state_epoch, stored.start_offset, 0, tuple(stored.batches))
        self._run.cluster.history.add(
            ShareStateCompared(
                at=self._run.admin.now(),
                group=self.name,
                topic=self.topic,
                partition=key.partition,
                memory=rules.done(),
                stored=SharePartition(rules.settings, found, lambda: 0.5).done(),
            )
        )


async def read_values(client: Client, topic: str) -> list[str]:
    """The values of all records of a topic."""
    values: list[str] = []
    for partition in PARTITIONS:
        position = 0
        while True:
            try:
                end = await list_offset(client, topic, partition, LATEST)
                if position >= end:
                    break
                answer = (
                    await fetch(client, topic, {partition: position}, committed_only=False, wait_ms=100)
                )[partition]
            except (ConnectionFailed, ErrorAnswer):
                client.forget_leader(topic)
                await client.pause()
                continue
            found = visible_records(bytes(answer.records or b""), position, None, committed_only=False)
            values += [value for _, value in found.records]
            position = found.next_offset
    return values


async def describe(client: Client, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Where the group begins in each partition, and how many records are before it."""
    asked = DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=list(PARTITIONS))
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=[asked])]
    )
    answer: DescribeShareGroupOffsetsResponse = await client.ask_coordinator(
        GROUP, group, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, DESCRIBE_VERSION, request
    )
    (answered,) = answer.groups
    if answered.error_code:
        raise ErrorAnswer("DescribeShareGroupOffsets", answered.error_code)
    found = {}
    for each in answered.topics:
        for part in each.partitions:
            if part.error_code:
                raise ErrorAnswer("DescribeShareGroupOffsets", part.error_code)
            found[part.partition_index] = (part.start_offset, part.lag)
    return found


def with_share_groups(play: Scenario) -> Scenario:
    """Plays a scenario beside two share groups, of which one reads committed records only."""

    async def both(run: Run) -> None:
        await ShareGroup(run, "sharers", Habits()).begin(MEMBERS_COUNT)
        await ShareGroup(run, "careful-sharers", Habits()).begin(
            2, {"share.isolation.level": "read_committed"}
        )
        await play(run)

    return both


async def dead_letters_refused(run: Run) -> None:
    """The dead-letter topic takes no dead letters for a while, as if it were away."""
    if DEAD_LETTERS in run.in_use:
        return
    run.in_use[DEAD_LETTERS] = None
    run.cluster.note("no dead letters are taken")
    await run.by_admin(set_topic_config(run.admin, DEAD_LETTERS, _ENABLED, "false"))
    await run.sleep(2.0, 20.0)
    await run.by_admin(set_topic_config(run.admin, DEAD_LETTERS, _ENABLED, "true"))
    run.cluster.note("dead letters are taken again")
    del run.in_use[DEAD_LETTERS]


def with_dead_letters(play: Scenario) -> Scenario:
    """Plays a scenario beside a share group that gives up much, and one that has nothing to do with it."""

    async def both(run: Run) -> None:
        await run.create_topic(DEAD_LETTERS, {_ENABLED: "true"})
        # A leader that dies between a dead letter and its word of it writes it again: it is read elsewhere.
        del run.topics[DEAD_LETTERS]
        habits = Habits(releases=25, rejects=25, mixes=25)
        await ShareGroup(run, "quitters", habits, dead_letters=DEAD_LETTERS).begin(MEMBERS_COUNT)
        await ShareGroup(run, "sharers", Habits()).begin(1)
        await play(run)

    return both
