"""What a share fetch is answered, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.queues import batch_headers, live_share
from millrace.log.errors import StorageError
from millrace.log.partition.log_slice import LogSlice
from millrace.metadata.commands import Alteration, AlterOperation, GroupResource
from millrace.queues.share_partition.model import ShareKey
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.principals import Identity, user
from millrace.wire.error_codes import ErrorCode
from millrace.wire.records import ControlMarker, ControlType, Record, build_batch, build_marker
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.queues.members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    Queue,
    offsets,
    parts,
    queue,
    runs,
    settle,
)
from tests.unit.security.acls.models import acl


async def set_group(broker: Broker, **settings: str) -> None:
    """Set settings of the group; `__` stands for a dot."""
    alterations = [
        Alteration(name.replace("__", "."), AlterOperation.SET, value) for name, value in settings.items()
    ]
    assert await broker.metadata.alter_configs([(GroupResource(GROUP), alterations)]) == [None]


def test_records_are_acquired_and_acknowledged_with_the_next_fetch(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(2, 3)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        answer = member.fetched()
        assert answer.acquisition_lock_timeout_ms == 30_000
        part = parts(answer)[0]
        assert runs(part) == [(0, 4, 1)]
        assert offsets(part) == [0, 1, 2, 3, 4]
        member.fetch((jobs, 0, [(0, 4, [ACCEPT])]), max_wait_ms=0)
        await settle()
        part = parts(member.fetched())[0]
        assert (part.error_code, part.acknowledge_error_code, runs(part)) == (0, 0, [])
        stored = await broker.persister.read(broker.shares.shares[0].key, 0)
        assert stored.start_offset == 5  # type: ignore[union-attr]
        stats = broker.shares.stats[GROUP]
        assert (stats.acquisitions, stats.acquired, stats.accept, stats.redelivered) == (1, 5, 5, 0)

    broker.run(work())


def test_a_fetch_waits_for_records_and_is_woken_by_them(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        assert member.take() == b""
        jobs.append(1)
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 0, 1)]
        assert not jobs.partitions[0].fetch_waiters

    broker.run(work())


def test_a_fetch_ends_empty_when_its_time_has_passed(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        member.fetch((jobs, 0), max_wait_ms=0)
        assert parts(member.fetched()) == {}, "as in Kafka, partitions are named that have something"
        member.fetch(max_wait_ms=20)
        await settle()
        assert member.take() == b""
        await asyncio.sleep(0.05)
        assert parts(member.fetched()) == {}
        assert not jobs.partitions[0].fetch_waiters

    broker.run(work())


def test_members_share_a_partition_and_only_one_is_woken_for_one_record(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        members = [Member(broker, f"m{number}") for number in range(4)]
        for member in members:
            member.fetch((jobs, 0), max_records=1)
        await settle()
        jobs.append(1, 1)
        await settle()
        answers = [member.take() for member in members]
        assert [bool(answer) for answer in answers] == [True, True, False, False]
        members[0].acknowledge((jobs, 0, [(0, 0, [RELEASE])]))
        await settle()
        assert parts(members[0].acknowledged())[0].error_code == 0
        assert runs(parts(members[2].fetched())[0]) == [(0, 0, 2)]
        assert members[3].take() == b""
        members[1].lose()
        await settle()
        assert runs(parts(members[3].fetched())[0]) == [(1, 1, 2)]

    broker.run(work())


def test_one_who_goes_away_while_woken_passes_it_on(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        first, second = Member(broker, "m1"), Member(broker, "m2")
        for member in (first, second):
            member.fetch((jobs, 0))
        await settle()
        jobs.append(1)
        first.lose()
        await settle()
        assert runs(parts(second.fetched())[0]) == [(0, 0, 1)]

    broker.run(work())


def test_a_member_that_holds_enough_lets_others_pass(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        await set_group(broker, share__member__max__record__locks="1")
        greedy, other = Member(broker, "m1"), Member(broker, "m2")
        jobs.append(1)
        greedy.fetch((jobs, 0))
        await settle()
        assert runs(parts(greedy.fetched())[0]) == [(0, 0, 1)]
        greedy.fetch()
        other.fetch((jobs, 0))
        await settle()
        jobs.append(1)
        await settle()
        assert greedy.take() == b""
        assert runs(parts(other.fetched())[0]) == [(1, 1, 1)]

    broker.run(work())


def test_a_lock_that_ends_gives_the_records_to_others(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(2)
        slow, other = Member(broker, "m1"), Member(broker, "m2")
        slow.fetch((jobs, 0))
        await settle()
        slow.take()
        other.fetch((jobs, 0))
        await settle()
        assert other.take() == b""
        broker.share_clock.now_ms += 30_000
        broker.shares.shares[0].expire()
        await settle()
        assert runs(parts(other.fetched())[0]) == [(0, 1, 2)]
        assert broker.shares.stats[GROUP].lock_timeouts == 2
        slow.acknowledge((jobs, 0, [(0, 1, [ACCEPT])]))
        await settle()
        assert parts(slow.acknowledged())[0].error_code == ErrorCode.INVALID_RECORD_STATE

    broker.run(work())


def test_the_loops_timer_ends_locks(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        await set_group(broker, share__record__lock__duration__ms="15000")
        jobs.append(1)
        slow = Member(broker, "m1")
        slow.fetch((jobs, 0))
        await settle()
        assert slow.fetched().acquisition_lock_timeout_ms == 15_000
        # The wall clock jumps; the timer looks when it was set to look.
        timers = broker.shares._timers
        assert timers is not None
        assert len(timers) == 1
        rules = broker.shares.shares[0].rules
        assert rules is not None
        assert rules.next_deadline_ms() == NOW_MS + 15_000

    broker.run(work())


def test_exact_limits_and_whole_batches(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(4, 4, 4)
        exact, soft = Member(broker, "m1"), Member(broker, "m2", version=1)
        exact.fetch((jobs, 0), max_records=2, share_acquire_mode=1)
        await settle()
        part = parts(exact.fetched())[0]
        assert runs(part) == [(0, 1, 1)]
        assert offsets(part) == [0, 1, 2, 3], "whole batches leave"
        soft.fetch((jobs, 0), max_records=3)
        await settle()
        part = parts(soft.fetched())[0]
        assert sum(last - first + 1 for first, last, _ in runs(part)) >= 3
        assert runs(part)[0][0] == 2

    broker.run(work())


def test_only_batches_with_records_for_the_member_leave(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(2, 2, 2)
        first, second = Member(broker, "m1"), Member(broker, "m2")
        first.fetch((jobs, 0))
        await settle()
        first.take()
        first.acknowledge((jobs, 0, [(0, 5, [RELEASE, ACCEPT, ACCEPT, ACCEPT, ACCEPT, RELEASE])]))
        await settle()
        second.fetch((jobs, 0))
        await settle()
        part = parts(second.fetched())[0]
        assert runs(part) == [(0, 0, 2), (5, 5, 2)]
        assert offsets(part) == [0, 1, 4, 5]

    broker.run(work())


def test_too_few_bytes_are_waited_for_and_taken_at_the_end(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(1)
        member = Member(broker)
        member.fetch((jobs, 0), min_bytes=200, max_wait_ms=40)
        await settle()
        assert member.take() == b""
        assert broker.shares.shares[0].rules.acquired_count == 0  # type: ignore[union-attr]
        await asyncio.sleep(0.08)
        assert runs(parts(member.fetched())[0]) == [(0, 0, 1)]
        member.fetch(min_bytes=200)
        jobs.append(1)
        await settle()
        assert member.take() == b""
        jobs.append(1, 1)
        await settle()
        assert runs(parts(member.fetched())[0]) == [(1, 3, 1)]

    broker.run(work())


def test_bytes_and_records_are_divided_among_partitions(broker: Broker) -> None:
    jobs = queue(broker, partitions=2)

    async def work() -> None:
        for index in (0, 1):
            jobs.append(*[1] * 10, partition=index)
        member = Member(broker)
        size = jobs.partitions[0].log.size_bytes // 10
        member.fetch((jobs, 0), (jobs, 1), max_wait_ms=0)
        await settle()
        member.take()
        member.fetch(max_bytes=8 * size)
        await settle()
        found = parts(member.fetched())
        assert {index: len(offsets(part)) for index, part in found.items()} == {0: 4, 1: 4}
        member.fetch(max_records=6)
        await settle()
        found = parts(member.fetched())
        assert sum(len(offsets(part)) for part in found.values()) == 6

    broker.run(work())


def test_urgent_topics_come_first(broker: Broker) -> None:
    slow, fast = queue(broker, "slow"), queue(broker, "fast", configs={"queue.priority": "9"})

    async def work() -> None:
        for each in (slow, fast):
            each.append(*[1] * 20)
        member = Member(broker)
        member.fetch((slow, 0), (fast, 0), max_wait_ms=0)
        await settle()
        member.take()
        order = []
        for _ in range(8):
            member.fetch(max_records=1)
            await settle()
            (topic,) = member.fetched().responses
            order.append("fast" if topic.topic_id == fast.topic_id else "slow")
        assert order == ["fast"] * 7 + ["slow"]

    broker.run(work())


def test_errors_are_told_once_and_then_wait_with_the_others(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        absent = Queue(broker, "absent", bytes(15) + b"x", ())  # type: ignore[arg-type]
        member.fetch((jobs, 0), (absent, 5))
        answer = member.fetched()
        codes = {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}
        assert codes == {absent.topic_id: ErrorCode.UNKNOWN_TOPIC_ID}
        member.fetch((jobs, 7))
        await settle()
        assert parts(member.fetched())[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        member.fetch()
        await settle()
        assert member.take() == b"", "it knows"
        jobs.append(1)
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 0, 1)]

    broker.run(work())


def test_nothing_but_errors_is_answered_at_once(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        for _ in range(2):
            member.fetch((jobs, 3))
            assert parts(member.fetched())[3].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    broker.run(work())


def test_waiting_fetches_hear_of_a_new_leader(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        jobs.partitions[0].follow(2, 7)
        broker.shares.leadership_changed(jobs.partitions[0])
        await settle()
        part = parts(member.fetched())[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(broker.shares) == 0
        member.fetch()
        assert parts(member.fetched())[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    broker.run(work())


def test_a_share_partition_without_state_is_an_error(broker: Broker) -> None:
    queue(broker, "other")
    topic = broker.create_topic("jobs")

    async def work() -> None:
        member = Member(broker)
        jobs = Queue(broker, "jobs", topic.topic_id, ())
        member.fetch((jobs, 0))
        await settle()
        assert parts(member.fetched())[0].error_code != 0
        assert len(broker.shares) == 0

    broker.run(work())


@pytest.mark.parametrize(
    "reset, expected", [("latest", 4), ("earliest", 0), ("by_duration:PT1H", 0), ("by_duration:PT0S", 4)]
)
def test_a_group_begins_where_its_settings_say(broker: Broker, reset: str, expected: int) -> None:
    jobs = queue(broker, start_offset=-1)

    async def work() -> None:
        await set_group(broker, share__auto__offset__reset=reset)
        jobs.append(2, 2)
        broker.share_clock.now_ms += 1
        member = Member(broker)
        member.fetch((jobs, 0))
        for _ in range(50):
            await asyncio.sleep(0.001)
        jobs.append(1)
        await settle()
        assert runs(parts(member.fetched())[0])[0][0] == expected

    broker.run(work())


def test_what_retention_took_is_passed_over(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(2, 2)
        member = Member(broker)
        member.fetch((jobs, 0), max_records=2)
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 1, 1)]
        member.acknowledge((jobs, 0, [(0, 1, [RELEASE])]))
        await settle()
        member.take()
        jobs.partitions[0].log.log_start_offset = 2
        member.fetch()
        await settle()
        assert runs(parts(member.fetched())[0]) == [(2, 3, 1)]

    broker.run(work())


def test_readers_of_committed_records_see_no_aborted_ones(broker: Broker) -> None:
    jobs = queue(broker)

    def end(kind: int, producer: int) -> None:
        marker = build_marker(
            ControlMarker(kind, 0), offset=0, timestamp=NOW_MS, producer_id=producer, producer_epoch=0
        )
        jobs.partitions[0].append_own(memoryview(bytearray(marker)), NOW_MS)

    def write(producer: int) -> None:
        fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        records = [Record(number, NOW_MS, None, b"x") for number in range(2)]
        data = build_batch(records, transactional=True, **fields)
        jobs.partitions[0].append_transactional(memoryview(bytearray(data)), NOW_MS)

    async def work() -> None:
        await set_group(broker, share__isolation__level="read_committed")
        write(7)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        assert member.take() == b"", "the transaction is open"
        write(8)
        end(ControlType.ABORT, 7)
        end(ControlType.COMMIT, 8)
        for _ in range(50):
            await asyncio.sleep(0.001)
        part = parts(member.fetched())[0]
        assert runs(part)[0][:1] == (2,)
        assert offsets(part)[:2] == [2, 3]

    broker.run(work())


def test_cold_records_are_read_by_threads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = queue(broker)
    cold = [True]
    monkeypatch.setattr(LogSlice, "is_cold", lambda found: cold[0])
    monkeypatch.setattr(LogSlice, "warm", lambda found: cold.__setitem__(0, False))

    async def work() -> None:
        jobs.append(2)
        jobs.partitions[0].log.segments[-1].forget_recent()
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert runs(parts(member.fetched())[0]) == [(0, 1, 1)]
        assert not cold[0]

    broker.run(work())


def test_large_batches_leave_as_slices_of_the_log(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_headers, "CHUNK_BYTES", 100)
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(3000, 3000)
        member = Member(broker)
        member.fetch((jobs, 0), max_records=6000)
        await settle()
        part = parts(member.fetched())[0]
        assert runs(part)[0][0] == 0
        assert offsets(part) == list(range(len(offsets(part))))
        assert len(offsets(part)) >= 3000

    broker.run(work())


def test_an_acknowledgement_of_the_same_member_ends_its_waiting_fetch(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(1)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        member.take()
        member.fetch()
        await settle()
        assert member.take() == b""
        member.acknowledge((jobs, 0, [(0, 0, [ACCEPT])]))
        await settle()
        assert len(member.take()) > 40, "both answers, in their order"

    broker.run(work())


def test_closing_a_session_gives_the_delivery_back_and_losing_it_does_not(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(1)
        keeper = Member(broker, "keeper")
        keeper.fetch((jobs, 0), max_records=0)
        keeper.fetched()
        first = Member(broker, "m1")
        first.fetch((jobs, 0))
        await settle()
        assert runs(parts(first.fetched())[0]) == [(0, 0, 1)]
        first.fetch(epoch=-1)
        await settle()
        assert first.fetched().error_code == 0
        second = Member(broker, "m2")
        second.fetch((jobs, 0))
        await settle()
        assert runs(parts(second.fetched())[0]) == [(0, 0, 1)]
        second.lose()
        third = Member(broker, "m3")
        third.fetch((jobs, 0))
        await settle()
        assert runs(parts(third.fetched())[0]) == [(0, 0, 2)]

    broker.run(work())


def test_the_last_acknowledgements_are_stored_before_a_session_closes(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(2)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        member.take()
        member.fetch((jobs, 0, [(0, 0, [ACCEPT])]), epoch=-1)
        await settle()
        assert parts(member.fetched())[0].acknowledge_error_code == 0
        assert len(broker.shares) == 0, "the group's last session here is gone"
        other = Member(broker, "m2")
        other.fetch((jobs, 0))
        await settle()
        assert runs(parts(other.fetched())[0])[0][0] == 1

    broker.run(work())


def test_fetches_are_counted_against_the_quota(broker: Broker) -> None:
    jobs = queue(broker)

    class Throttle:
        fetch_bytes_max = 1_000_000.0
        is_timed = False
        charged: list[int] = []  # noqa: RUF012

        def holds_back(self, size_bytes: int) -> bool:
            self.charged.append(size_bytes)
            return True

        def charge(self, _slot: object, response: object) -> object:
            return response

    async def work() -> None:
        member = Member(broker)
        # What counts for a client is found out with its first request.
        member.fetch((jobs, 0), max_wait_ms=0)
        member.fetched()
        jobs.append(2)
        member.connection.throttle = Throttle()  # type: ignore[assignment]
        member.fetch()
        await settle()
        assert parts(member.fetched()) == {}
        assert Throttle.charged
        assert broker.shares.shares[0].rules.acquired_count == 0  # type: ignore[union-attr]

    broker.run(work())


def test_waiting_fetches_end_when_the_permission_is_gone(restricted: Broker) -> None:
    broker = restricted
    jobs = queue(broker)
    of_group = acl(GROUP, Operation.READ, "User:worker", resource_type=ResourceType.GROUP)
    of_topic = acl("jobs", Operation.READ, "User:worker")

    def member(name: str) -> Member:
        found = Member(broker, name)
        found.connection.authenticated_as(Identity(principal=user("worker")))
        return found

    async def wait(found: Member) -> None:
        found.fetch((jobs, 0))
        await settle()

    refused = broker.run(_first(member, "m0", jobs))
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.allow(of_group)
    refused = broker.run(_first(member, "m0", jobs))
    assert parts(refused)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.allow(of_topic)
    waiting = broker.run(_made(member, "m1"))
    broker.run(wait(waiting))
    assert waiting.take() == b""
    broker.take_back(of_topic)
    assert parts(waiting.fetched())[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.allow(of_topic)
    waiting = broker.run(_made(member, "m2"))
    broker.run(wait(waiting))
    broker.take_back(of_group)
    assert waiting.fetched().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def _made(member: Any, name: str) -> Member:
    found: Member = member(name)
    return found


async def _first(member: Any, name: str, jobs: Queue) -> Any:
    found = member(name)
    found.fetch((jobs, 0))
    await settle()
    return found.fetched()


def test_rejected_records_are_never_seen_again(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        jobs.append(3)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        member.take()
        member.fetch((jobs, 0, [(0, 2, [ACCEPT, REJECT, RELEASE])]))
        await settle()
        part = parts(member.fetched())[0]
        assert runs(part) == [(2, 2, 2)]
        assert part.acknowledge_error_code == 0
        stats = broker.shares.stats[GROUP]
        assert (stats.accept, stats.reject, stats.release, stats.redelivered) == (1, 1, 1, 1)

    broker.run(work())


def test_settings_count_from_the_moment_they_are_set(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        await set_group(broker, share__delivery__pause="true")
        jobs.append(1)
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        assert member.take() == b""
        await set_group(broker, share__delivery__pause="false")
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 0, 1)]

    broker.run(work())


def test_a_topic_that_is_deleted_is_fetched_no_more(broker: Broker) -> None:
    jobs = queue(broker)
    member = broker.run(_made(lambda name: Member(broker, name), "m1"))

    async def wait() -> None:
        member.fetch((jobs, 0))
        await settle()

    broker.run(wait())
    assert member.take() == b""
    broker.run(broker.metadata.delete_topics(["jobs"]))
    broker.run(settle())
    assert parts(member.fetched())[0].error_code != 0
    assert broker.shares.find(ShareKey(GROUP, jobs.topic_id, 0)) is None


def test_records_of_a_key_are_in_flight_one_at_a_time(broker: Broker) -> None:
    jobs = queue(broker)

    async def wait(member: Member) -> Any:
        for _ in range(200):
            await asyncio.sleep(0.001)
            if member._transport.writes:
                return parts(member.fetched())[0]
        raise AssertionError("no answer")

    async def work() -> None:
        await set_group(broker, share__order="key")
        keys = (b"a", b"a", b"b", None, b"a")
        records = [Record(number, NOW_MS, key, b"v") for number, key in enumerate(keys)]
        jobs.partitions[0].append(memoryview(bytearray(build_batch(records))), NOW_MS)
        first, second = Member(broker, "m1"), Member(broker, "m2")
        first.fetch((jobs, 0))
        assert [run[:2] for run in runs(await wait(first))] == [(0, 0), (2, 3)]
        second.fetch((jobs, 0))
        await settle()
        assert second.take() == b""
        first.acknowledge((jobs, 0, [(0, 0, [ACCEPT])]))
        assert runs(await wait(second)) == [(1, 1, 1)]

    broker.run(work())


def test_aborted_transactions_that_cannot_be_looked_up_are_an_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue(broker)

    def too_many_files(*_: object) -> None:
        raise StorageError("open", "x.txnindex", "too many open files")

    async def work() -> None:
        await set_group(broker, share__isolation__level="read_committed")
        member = Member(broker)
        member.fetch((jobs, 0))
        await settle()
        with monkeypatch.context() as patch:
            patch.setattr(live_share, "without_aborted", too_many_files)
            jobs.append(2)
            await settle()
            part = parts(member.fetched())[0]
        assert (part.error_code, runs(part)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        assert not broker.shares.shares[0].waiters, "nobody is left behind in the line"
        member.fetch((jobs, 0))
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 1, 1)]

    broker.run(work())
