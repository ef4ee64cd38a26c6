"""Records that are stored once: over producers, connections, failures, changes of leaders, and time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.broker.handlers.produce import deduplication
from millrace.broker.handlers.produce.deduplication import DROPPED_AT_ONCE
from millrace.log.errors import DiskFailed
from millrace.log.partition.log_slice import LogSlice
from millrace.queues.delayed.model import DELAY_MS
from millrace.queues.marked_records import DEDUP_ID
from millrace.wire.compression import CODEC_NAMES, Codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.produce.test_marked_batches import Clock, Store, ask, log_of
from tests.unit.broker.handlers.produce.test_produce import (
    TOPIC,
    follower_has_all,
    partition_of,
    results,
    run,
    with_followers,
)
from tests.unit.broker.network.client import Client

WINDOW_MS = 10_000


def batch(
    *ids: str,
    sequence: int = -1,
    producer_id: int = 7,
    codec: Codec = Codec.NONE,
    timestamp: int = NOW_MS,
    delay: bytes | None = None,
) -> bytes:
    """A batch whose records have the ids as values; an empty id is none."""
    records = []
    for index, each in enumerate(ids):
        headers: tuple[tuple[str, bytes | None], ...] = ((DEDUP_ID, each.encode()),) if each else ()
        if delay is not None:
            headers += ((DELAY_MS, delay),)
        records.append(Record(index, timestamp, b"key", each.encode(), headers))
    has_producer = sequence >= 0
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id if has_producer else -1,
        producer_epoch=0 if has_producer else -1,
        base_sequence=sequence,
    )


def values(broker: Broker) -> str:
    return "".join((value or b"").decode() for _, value in log_of(broker))


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW_MS)


@pytest.fixture
def once(broker: Broker, clock: Clock) -> Broker:
    broker.create_topic(TOPIC, 3, {"dedup.window.ms": str(WINDOW_MS)})
    broker.services.clock = clock
    broker.services.deduplication._clock = clock
    return broker


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_what_is_sent_again_is_stored_once_and_its_producer_is_content(
    once: Broker, codec: Codec, acks: int
) -> None:
    async def work(client: Client) -> None:
        client.receive(
            ask(
                batch("a", "b", "", codec=codec),
                batch("b", "c", "c", "", codec=codec),
                batch("a", "c", codec=codec),
                batch("d"),
                acks=acks,
            )
        )
        assert results(9, await client.answers()) == [(0, 0, 0), (0, 0, 3), (0, 0, 7), (0, 0, 9)]

    run(once, work)
    assert [offset for offset, _ in log_of(once)] == [0, 1, 2, 4, 6, 9]
    assert values(once) == "abcd"
    stats = partition_of(once).stats
    assert (stats.deduplicated, stats.messages_in) == (4, 6)
    assert once.services.deduplication.ids_count == 4


def test_without_acknowledgement_too(once: Broker) -> None:
    async def work(client: Client) -> None:
        client.receive(ask(batch("a"), batch("a"), acks=0))
        assert await client.answers() == b""
        assert not client.transport.is_aborted

    run(once, work)
    assert values(once) == "a"


def test_the_window_begins_with_the_first_and_ends(once: Broker, clock: Clock) -> None:
    async def work(client: Client) -> None:
        for at_ms, expected in (
            (0, "a"),
            (6_000, "a"),
            (WINDOW_MS, "a"),
            (WINDOW_MS + 1, "aa"),
            (15_000, "aa"),
        ):
            clock.now_ms = NOW_MS + at_ms
            client.receive(ask(batch("a", timestamp=clock.now_ms)))
            await client.answers()
            assert values(once) == expected, at_ms

    run(once, work)


def test_each_partition_has_its_own_ids(once: Broker) -> None:
    async def work(client: Client) -> None:
        client.receive(ask(batch("a")))
        await client.answers()

    run(once, work)
    assert once.services.deduplication.ids_count == 1
    assert partition_of(once, 1).log.log_end_offset == 0


def test_a_batch_that_its_producer_sends_again_is_no_repetition(once: Broker) -> None:
    async def work(client: Client) -> None:
        first, second = batch("a", "b", sequence=0), batch("c", sequence=2)
        client.receive(ask(first, second, first, second, batch("d", sequence=3)))
        found = results(9, await client.answers())
        assert found == [(0, 0, 0), (0, 0, 2), (0, 0, 0), (0, 0, 2), (0, 0, 3)]

    run(once, work)
    assert values(once) == "abcd"
    assert partition_of(once).stats.deduplicated == 0


def test_a_thinned_batch_keeps_the_sequence_of_its_producer(once: Broker) -> None:
    async def work(client: Client) -> None:
        thinned = batch("a", "x", "b", sequence=0)
        client.receive(
            ask(
                batch("a", "b"),
                thinned,
                batch("b", sequence=3),
                thinned,
                batch("y", sequence=4),
                batch("z", sequence=9),
            )
        )
        found = results(9, await client.answers())
        assert found == [
            (0, 0, 0),
            (0, 0, 2),
            (0, 0, 5),
            (0, 0, 2),
            (0, 0, 6),
            (0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        ]

    run(once, work)
    assert values(once) == "abxy"


def test_two_producers_at_the_same_time_store_one_record(once: Broker) -> None:
    async def work(client: Client) -> None:
        others = [Client(once.services) for _ in range(5)]
        for number, each in enumerate([client, *others]):
            each.receive(ask(batch("a", f"{number}", codec=Codec.ZSTD)))
        for each in [client, *others]:
            ((_, code, _),) = results(9, await each.answers())
            assert code == 0

    run(once, work)
    assert sorted(values(once)) == sorted("a012345")


def test_a_batch_that_is_not_appended_leaves_no_ids(once: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(batch("a", "b", sequence=5), batch("c", sequence=9)))
        assert [code for _, code, _ in results(9, await client.answers())] == [
            0,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ]
        partition.require_replicas(min_insync=2)
        with_followers(partition, 1)
        client.receive(ask(batch("d", "a")))
        assert results(9, await client.answers()) == [(0, ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        with_followers(partition, 1, 2)
        with monkeypatch.context() as patch:

            def fail(*_arguments: object) -> None:
                raise DiskFailed("write", "the log", "no disk")

            patch.setattr(type(partition), "append_thinned", fail)
            patch.setattr(type(partition), "append", fail)
            client.receive(ask(batch("e"), batch("a", "f")))
            codes = [code for _, code, _ in results(9, await client.answers())]
            assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        client.receive(ask(batch("c", "d", "e", "f", "a")))
        assert await client.answers() == b""
        follower_has_all(partition)
        assert results(9, await client.answers()) == [(0, 0, 2)]

    run(once, work)
    assert values(once) == "abcdef"
    assert partition_of(once).stats.deduplicated == 1


@pytest.mark.parametrize("piece_bytes", [1, 4 << 20])
def test_a_new_leader_reads_the_ids_of_the_logs_tail(
    once: Broker, clock: Clock, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "PIECE_BYTES", piece_bytes)

    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(batch("o", timestamp=NOW_MS - WINDOW_MS), batch("p", timestamp=NOW_MS)))
        await client.answers()
        clock.now_ms += 1_000
        client.receive(ask(batch("", "q", codec=Codec.LZ4, timestamp=clock.now_ms), batch("q", "q")))
        await client.answers()
        partition.follow(2, 5)
        partition.lead(1, 6)
        clock.now_ms += 1_000
        client.receive(ask(batch("o", "p", "q", "r")))
        ((_, code, _),) = results(9, await client.answers())
        assert code == 0

    run(once, work)
    # The first had an older timestamp than the window reaches back: after a change of leaders that counts.
    assert values(once) == "opqor"


def test_what_another_leader_has_stored_counts(once: Broker) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(batch("a")))
        await client.answers()
        partition.follow(2, 5)
        replicated = bytearray(batch("b"))
        replicated[:8] = (1).to_bytes(8, "big")
        partition.log.append_replicated(memoryview(replicated))
        partition.log.high_watermark = 2
        partition.lead(1, 6)
        client.receive(ask(batch("a", "b", "c")))
        await client.answers()

    run(once, work)
    assert values(once) == "abc"


def test_who_waits_too_long_is_told_to_come_again_and_the_next_goes_on(
    once: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "PIECE_BYTES", 1)

    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(*[batch(each) for each in "abcdefgh"]))
        await client.answers()
        partition.follow(2, 5)
        partition.lead(1, 6)
        tries = 0
        code = None
        while code != ErrorCode.NONE:
            tries += 1
            client.receive(ask(batch("h", sequence=0), timeout_ms=0))
            ((_, code, _),) = results(9, await client.answers())
            assert code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
            assert tries < 1_000

    run(once, work)
    assert values(once) == "abcdefgh"


def test_a_batch_behind_one_that_waits_is_told_to_come_again_too(once: Broker) -> None:
    async def work(client: Client) -> None:
        ids = once.services.deduplication
        client.receive(ask(batch("a")))
        await client.answers()
        known = ids._known[partition_of(once)]
        async with known.lock:
            client.receive(ask(batch("b", sequence=0), batch("c", sequence=1), timeout_ms=1))
            codes = [code for _, code, _ in results(9, await client.answers())]
            assert codes == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
        client.receive(ask(batch("b", sequence=0), batch("c", sequence=1)))
        assert results(9, await client.answers()) == [(0, 0, 1), (0, 0, 2)]

    run(once, work)
    assert values(once) == "abc"


def test_memory_is_bounded_and_the_oldest_ids_go_first(once: Broker) -> None:
    ids = once.services.deduplication
    ids.ids_max = 64

    async def work(client: Client) -> None:
        for number in range(100):
            client.receive(ask(batch(f"{number}")))
            await client.answers()
            assert ids.ids_count <= ids.ids_max
        client.receive(ask(batch("99", "98"), batch("0")))
        await client.answers()

    run(once, work)
    assert ids.dropped_count >= 100 - 64
    assert ids.dropped_count <= 100 - 64 + 64 // DROPPED_AT_ONCE + 1
    assert partition_of(once).stats.deduplicated == 2


def test_ids_go_with_the_partition_the_leadership_or_the_setting(once: Broker) -> None:
    ids = once.services.deduplication

    async def produced(client: Client) -> None:
        client.receive(ask(batch("a")))
        await client.answers()

    run(once, produced)
    assert ids.ids_count == 1
    log = partition_of(once).log
    log.set_config(replace(log.config, dedup_window_ms=0))
    once.services.partitions.world.changed()
    assert (ids.ids_count, ids._known) == (0, {})
    run(once, produced)
    assert values(once) == "aa", "nobody asks for it any more"
    log.set_config(replace(log.config, dedup_window_ms=WINDOW_MS))
    run(once, produced)
    assert values(once) == "aa", "the log has it"
    partition_of(once).follow(2, 9)
    once.services.partitions.world.changed()
    assert ids.ids_count == 0


def test_a_longer_window_is_read_anew(once: Broker, clock: Clock) -> None:
    async def work(client: Client) -> None:
        client.receive(ask(batch("a")))
        await client.answers()
        clock.now_ms += 2 * WINDOW_MS
        client.receive(ask(batch("b", timestamp=clock.now_ms)))
        await client.answers()
        log = partition_of(once).log
        log.set_config(replace(log.config, dedup_window_ms=5 * WINDOW_MS))
        client.receive(ask(batch("a", "b", timestamp=clock.now_ms)))
        await client.answers()

    run(once, work)
    assert values(once) == "ab"


def test_a_delayed_record_is_stored_once_as_well(once: Broker) -> None:
    store = Store()
    once.services.delayed_store = store

    async def work(client: Client) -> None:
        log = partition_of(once).log
        log.set_config(replace(log.config, delayed_delivery_enable=True))
        first = batch("a", "b", delay=b"500", sequence=0)
        again = batch("b", "c", delay=b"500", sequence=2)
        client.receive(ask(first, again, again, batch("a")))
        assert results(9, await client.answers()) == [(0, 0, 0), (0, 0, 2), (0, 0, 2), (0, 0, 4)]

    run(once, work)
    assert log_of(once) == []
    assert store.offsets == [0, 1, 3, 3]


def test_leadership_that_moves_while_a_batch_is_thinned_refuses_it(
    once: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(batch("a")))
        await client.answers()

        def move() -> None:
            partition.follow(2, 5)
            partition.lead(1, 6)

        def move_soon(*_arguments: object) -> bool:
            # The loop comes to this before it hears that the thread is done.
            asyncio.get_running_loop().call_soon(move)
            return False

        monkeypatch.setattr(deduplication, "_is_sent_again", move_soon)
        client.receive(ask(batch("a", "b")))
        assert results(9, await client.answers()) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]

    run(once, work)
    assert values(once) == "a"


@pytest.mark.parametrize("damaged", [b"", b"\0" * 70], ids=["nothing", "zeros"])
def test_a_log_that_cannot_be_read_keeps_nobody_waiting(
    once: Broker, damaged: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(once)
        client.receive(ask(batch("a")))
        await client.answers()
        partition.follow(2, 5)
        partition.lead(1, 6)
        monkeypatch.setattr(LogSlice, "read", lambda _slice: damaged)
        client.receive(ask(batch("a")))
        ((_, code, _),) = results(9, await client.answers())
        assert code == ErrorCode.NONE

    run(once, work)
    monkeypatch.undo()
    assert values(once) == "aa"
