"""The four ways through the house (docs/architecture.md), traced: which functions of ours a request passes on
its way through brokers that run in the simulator. `python -m tests.harness.four_ways` prints them all.

What counts as a hop: a function of ours that is entered, once for each way, however often it is called. Left
out are what nobody has to follow to know where a request goes:

- properties, constructors and other methods with double underscores, and functions within functions, which
  stand where they are used;
- functions that call none of ours and have no branch: their name says what they do;
- codecs (`CODECS`), with all that they call, and what has to do with something else (`ASIDE`).
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple
from unittest.mock import patch

import millrace
from millrace.broker.app import Broker
from millrace.broker.assembly.ground import Release
from millrace.broker.config.config import BrokerConfig
from millrace.broker.handlers import APIS
from millrace.broker.surroundings import Surroundings
from millrace.core.errors import MillraceError
from millrace.metadata.fold import image_of
from millrace.sim import network
from millrace.sim.clients.admin import create_topic
from millrace.sim.clients.client import GROUP, Client
from millrace.sim.clients.producer import PRODUCE_VERSION, produce_request
from millrace.sim.cluster import Cluster
from millrace.sim.process import CURRENT
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.wire.records import Record, build_batch

SOURCES: Final = Path(millrace.__file__).parent
SIMULATOR: Final = "sim/"
CLIENT: Final = "client/"
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"

CODECS: Final = (
    "wire/",
    "groups/records.py",
    "metadata/records.py",
    "metadata/fold.py",
    "core/persistent_map.py",
    "metadata/config_definitions/",
    "coordinator/internal_topic.py:InternalTopic.partition_of",
    "security/acls/decisions.py",
    "log/disk/",
)
"""Bytes into values and back, lookups (among them whether somebody may), and the disk itself."""

ASIDE: Final = (
    # Clocks, tasks and threads; how the turns of the loop are batched is a step.
    "core/background.py",
    "core/clock.py",
    "core/lanes.py",
    "core/threads.py",
    "core/world.py",
    # A broker looks at its lease before it handles requests.
    "metadata/session.py:BrokerSession.check_time",
    # Where the next bytes are put, and what is left of an unfinished frame.
    "broker/network/connection.py:Connection.get_buffer",
    "client/exchange.py:AnswerStream._keep",
    # What was written is flushed later.
    "log/directories/log_directory.py",
    "log/partition/flushing.py",
)
"""What has to do with something else, and is passed over."""

PRODUCERS_OWN: Final = (
    "broker/handlers/produce/",
    "core/turn_batching.py",
    "replica/partition.py:Partition.append",
    "log/partition/partition_log.py:PartitionLog.append_as_leader",
    "log/segments/segment.py:Segment.note",
    "broker/network/lookout.py",
    "broker/network/connection.py:Connection.send_answers",
)
"""In the way of a fetch: what the request of a producer does on its own account."""

BESIDE_AN_ELECTION: Final = (
    # What else a broker does when a connection breaks, or when it hears of a new image.
    "broker/assembly/quotas.py:_sharers",
    "metadata/security/delegation_tokens.py:DelegationTokens._follow",
    # Queues look whether a partition of theirs is concerned; none is in this way.
    "queues/state/service.py:ShareState._image_changed",
    "broker/queues/dead_letters.py:DeadLetters.metadata_changed",
    "broker/queues/delayed/service.py:DelayedDelivery.partition_changed",
    "broker/queues/share_partitions.py:SharePartitions.leadership_changed",
    "broker/queues/share_partitions.py:SharePartitions.metadata_changed",
    "broker/replication/fetcher.py:LeaderFetcher._answered",
    "broker/replication/fetcher.py:LeaderFetcher._connect",
    "broker/replication/fetcher.py:LeaderFetcher._reset",
    "broker/replication/fetcher.py:Fetchers",
    "broker/replication/peers.py:Peers._is_present",
    "broker/replication/peers.py:Peers._has_survived",
    "broker/replication/peers.py:Peers._knock",
    "broker/replication/peers.py:Peers.image_changed",
    "broker/replication/peers.py:Peers.met",
    "broker/replication/peers.py:Peers.open",
    "client/exchange.py:AnswerStream.buffer_updated",
    "client/exchange.py:AnswerStream.end",
    "broker/replication/replication.py:Replication._image_changed",
    "broker/replication/replication.py:Replication.follow",
    "broker/replication/isr.py",
    "broker/replication/mender.py",
    "broker/network/",
    "broker/handlers/",
    "groups/",
    "transactions/",
    "metadata/session.py",
    "metadata/reconciler.py:Reconciler._change",
    "metadata/reconciler.py:Reconciler._delete_logs",
    "metadata/reconciler.py:Reconciler._finish",
    "metadata/reconciler.py:Reconciler.load_settings",
    "metadata/controller_task.py:_default_settings_revision",
    "metadata/committing.py:CommittedImage.wait_for_revision",
    # The store, settings, and what a record of a partition looks like.
    "metadata/store/",
    "metadata/leadership.py:PartitionUpdate",
    "metadata/leadership.py:Rulebook",
    "broker/config/",
    # What a partition's log and readers are told.
    "log/",
    "replica/partition.py:Partition._tell_start_watchers",
    "replica/partition.py:Partition.changed",
    "replica/partition.py:Partition.follow",
)
"""In the way of an election, with all that they call."""

TOPIC: Final = "orders"
FETCH_VERSION: Final = 13
COMMIT_VERSION: Final = 8


class Call(NamedTuple):
    process: str
    caller: int
    """Its number in the trace; -1 for the loop."""
    path: str
    name: str

    @property
    def step(self) -> str:
        return f"{self.path}:{self.name}"


class Tracer:
    """Writes down calls of our functions while it is on, in the order in which they happen."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._frames: dict[FrameType, int] = {}

    def start(self) -> None:
        self.calls = []
        sys.setprofile(self._called)

    def stop(self) -> list[Call]:
        sys.setprofile(None)
        self._frames.clear()
        return self.calls

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        path = _path_of(frame.f_code)
        # A coroutine that goes on is called again.
        if event != "call" or path is None or frame in self._frames:
            return
        caller, back = -1, frame.f_back
        while back is not None and caller < 0:
            caller, back = self._frames.get(back, -1), back.f_back
        process = CURRENT.get()
        self._frames[frame] = len(self.calls)
        self.calls.append(
            Call("" if process is None else process.name, caller, path, frame.f_code.co_qualname)
        )


@cache
def _path_of(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCES):
        return None
    relative = str(path.relative_to(SOURCES))
    return None if relative.startswith(SIMULATOR) else relative


@cache
def functions_of(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a module, by their names."""
    tree = ast.parse((SOURCES / path).read_text(encoding="utf-8"))
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + each.name] = each
    return found


def _is_left_out(call: Call) -> bool:
    node = functions_of(call.path).get(call.name)
    return (
        node is None
        or node.name.startswith("__")
        or any("property" in ast.unparse(each) for each in node.decorator_list)
        or call.step.startswith(ASIDE)
    )


def _has_branch(node: ast.AST) -> bool:
    branches = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
    return any(isinstance(each, branches) for each in ast.walk(node))


def hops(calls: list[Call], *, without: tuple[str, ...] = (), pruned: tuple[str, ...] = ()) -> list[str]:
    """The steps of a way, in the order in which they are first taken. What is in `without` is left out, what
    is in `pruned` with all that it calls."""
    kept: dict[int, int] = {}
    cut_off: set[int] = set()
    for number, call in enumerate(calls):
        if call.caller in cut_off or call.step.startswith(CODECS + pruned):
            cut_off.add(number)
        elif not _is_left_out(call):
            caller = call.caller
            while caller >= 0 and caller not in kept:
                caller = calls[caller].caller
            kept[number] = caller
    callers = set(kept.values())
    steps = [
        calls[number].step
        for number in kept
        if number in callers or _has_branch(functions_of(calls[number].path)[calls[number].name])
    ]
    return [step for step in dict.fromkeys(steps) if not step.startswith(without or ("-",))]


# The ways.


def _batch() -> bytes:
    return build_batch([Record(0, 1_700_000_000_000, None, b"value")])


async def _produced(cluster: Cluster, tracer: Tracer, client: Client) -> list[Call]:
    """One batch with acks=all to a partition with three replicas, as its producer has sent others before."""
    await create_topic(client, TOPIC, partitions=1, replicas=3)
    await asyncio.sleep(2)
    await client.refresh(TOPIC)
    leader = await client.leader(TOPIC, 0)
    for _ in range(5):
        await client.ask(leader, ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(TOPIC, 0, _batch()))
        await asyncio.sleep(0.3)
    tracer.start()
    await client.ask(leader, ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(TOPIC, 0, _batch()))
    return tracer.stop()


def _fetched(*, is_general: bool) -> Callable[[Cluster, Tracer, Client], Awaitable[list[Call]]]:
    """A consumer that waits at the end of its partition, in a session, and the batch that it waits for. With
    two partitions it takes the general way."""

    async def play(cluster: Cluster, tracer: Tracer, client: Client) -> list[Call]:
        await create_topic(client, TOPIC, partitions=2)
        await asyncio.sleep(1)
        await client.refresh(TOPIC)
        leader = await client.leader(TOPIC, 0)
        topic_id = client.topics[TOPIC].topic_id
        consumer, _ = cluster.client("consumer")
        connection = await consumer.connection(leader)
        session_id = session_epoch = offset = 0
        calls: list[Call] = []
        for turn in range(6):
            is_last = turn == 5
            # A session is told of what has changed.
            wanted = [(0, offset)] if turn or not is_general else [(0, 0), (1, 0)]
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=session_id,
                session_epoch=session_epoch,
                topics=[
                    FetchTopic(
                        topic_id=topic_id,
                        partitions=[
                            FetchPartition(partition=number, fetch_offset=at, partition_max_bytes=1 << 20)
                            for number, at in wanted
                        ],
                    )
                ],
            )
            if is_last:
                tracer.start()
            answer = connection.ask(ApiKey.FETCH, FETCH_VERSION, request)
            await asyncio.sleep(0.1)
            if is_last:
                # What the producer's request does on its own account is no part of this way.
                calls = tracer.stop()
                await asyncio.sleep(0)
                tracer.start()
            await client.ask(leader, ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(TOPIC, 0, _batch()))
            response = await connection.answer_of(answer)
            session_id, session_epoch, offset = response.session_id, session_epoch + 1, offset + 1
        first = len(calls)
        later = tracer.stop()
        return calls + [
            call._replace(caller=call.caller + first if call.caller >= 0 else -1) for call in later
        ]

    return play


async def _committed(cluster: Cluster, tracer: Tracer, client: Client) -> list[Call]:
    """A member of a group commits the offset of one partition, as it has done before."""
    await create_topic(client, TOPIC, partitions=1)
    member_id, generation = await _join(client)

    def request(offset: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        return OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )

    for offset in range(3):
        await client.ask_coordinator(GROUP, "g", ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request(offset))
        await asyncio.sleep(0.4)
    tracer.start()
    response = await client.ask_coordinator(GROUP, "g", ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request(9))
    calls = tracer.stop()
    assert response.topics[0].partitions[0].error_code == 0
    return calls


class WithoutQuickWays(Broker):
    """A broker that recognises no request that has a general handler."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        release = Release(apis=tuple(replace(api, quick=None) for api in APIS))
        super().__init__(config, surroundings, release)


async def _join(client: Client) -> tuple[str, int]:
    """Become the only member of a group: its id and the generation."""
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    while True:
        try:
            joined = await client.ask_coordinator(GROUP, "g", ApiKey.JOIN_GROUP, 3, join)
        except MillraceError:
            joined = None
        if joined is not None and joined.error_code == 0:
            break
        client.forget_coordinator(GROUP, "g")
        await asyncio.sleep(0.5)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")],
    )
    await client.ask_coordinator(GROUP, "g", ApiKey.SYNC_GROUP, 2, sync)
    return joined.member_id, joined.generation_id


async def _leader_died(cluster: Cluster, tracer: Tracer, client: Client) -> list[Call]:
    """The process of a leader is killed, which is not the controller's, and a follower leads."""
    await create_topic(client, TOPIC, partitions=1, replicas=3)
    await asyncio.sleep(3)
    image = image_of(cluster.store.peek())
    leader = image.topics[TOPIC].partitions[0].leader
    assert leader != image.controller_id, "choose another seed"
    tracer.start()
    next(node for node in cluster.nodes if node.node_id == leader).kill()
    await asyncio.sleep(1.5)
    survivors = {f"broker-{node.node_id}" for node in cluster.nodes if node.node_id != leader}
    # The coroutines of the one that was killed end in the name of whoever kills it.
    return [call if call.process in survivors else call._replace(path=_NOBODYS) for call in tracer.stop()]


_NOBODYS: Final = "wire/"


class Way(NamedTuple):
    """One of the four, or its general form."""

    name: str
    title: str
    """Of its section in docs/architecture.md."""
    play: Callable[[Cluster, Tracer, Client], Awaitable[list[Call]]]
    nodes: int = 1
    broker: type[Broker] = Broker
    without: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()


WAYS: Final = (
    Way("produce", "Produce: a batch with acks=all", _produced, nodes=3),
    Way(
        "fetch",
        "Fetch: a consumer at the end of its partition",
        _fetched(is_general=False),
        without=PRODUCERS_OWN,
    ),
    Way("fetch, general", "Fetch: the general way", _fetched(is_general=True), without=PRODUCERS_OWN),
    Way("commit", "Commit: a member commits an offset", _committed),
    Way("commit, general", "Commit: the general way", _committed, broker=WithoutQuickWays),
    Way("death", "A leader's death", _leader_died, nodes=3, pruned=BESIDE_AN_ELECTION),
)


def described() -> dict[str, list[str]]:
    """The steps of each way, by the title of its section in docs/architecture.md."""
    return {
        section.partition("\n")[0]: re.findall(r"^\d+\. `([\w/]+\.py:[\w.]+)`", section, re.MULTILINE)
        for section in _chapter().split("\n### ")[1:]
    }


class Row(NamedTuple):
    """What the table of that page says of a way."""

    way: str
    hops_before: int
    hops: int
    files: int


def table() -> list[Row]:
    rows = re.findall(r"^\| (.*) \| (\d+) \| (\d+) \| \d+ \| (\d+) \|$", _chapter(), re.MULTILINE)
    return [Row(way, *map(int, numbers)) for way, *numbers in rows]


def _chapter() -> str:
    page = PAGE.read_text(encoding="utf-8")
    return page.split("\n## The four ways through the house\n")[1].split("\n## ")[0]


def trace(way: Way) -> list[str]:
    """The steps of a way, as they are taken."""
    # Indexes as seldom as by default: every few kilobytes.
    settings = {"log.index.interval.bytes": "4096"}
    cluster = Cluster(1, nodes=way.nodes, settings=settings, new_broker=way.broker)
    cluster.network.latency_s = (0.000_5, 0.000_5)
    client, process = cluster.client("client")

    async def work() -> list[Call]:
        cluster.start()
        await cluster.until_ready()
        return await cluster.run_in(process, play())

    async def play() -> list[Call]:
        return await way.play(cluster, Tracer(), client)

    # Requests come in one piece.
    with patch.object(network, "SPLIT_CHANCE", 0.0):
        calls = cluster.loop.run(work())
        cluster.close()
    # Brokers and clients connect in the same way: what the client does is no part of these ways.
    calls = [
        call._replace(path=_NOBODYS)
        if call.process == process.name and call.path.startswith(CLIENT)
        else call
        for call in calls
    ]
    return hops(calls, without=way.without, pruned=way.pruned)


def main() -> None:
    for way in WAYS:
        steps = trace(way)
        files = {step.partition(":")[0] for step in steps}
        print(f"{way.name}: {len(steps)} hops in {len(files)} files")
        for step in steps:
            print(f"  {step}")


if __name__ == "__main__":
    main()
