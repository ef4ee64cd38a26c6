"""Messages are delivered when they are due, once, whatever happens between."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.queues.delayed import delivery
from millrace.log.errors import DiskFull
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.codec import Intent, Target, encode_intent
from millrace.wire.records import build_plain_batch
from tests.unit.broker.handlers.broker import NOW_MS
from tests.unit.broker.queues.delayed.world import TOPIC, Killed, World


def test_a_message_comes_when_it_is_due_with_its_time_and_its_headers(world: World) -> None:
    assert world.add(world.message(NOW_MS + 500, headers=(("colour", b"red"),))) is None
    keeper = world.keeper()
    world.step(keeper)
    assert world.keys() == []
    world.clock.now_ms += 500
    world.step(keeper)
    (record,) = world.delivered()
    assert (record.timestamp, record.key, record.value) == (NOW_MS + 500, b"0", b"v")
    assert record.headers == (("colour", b"red"), ("millrace-scheduled-at", str(NOW_MS).encode()))
    world.step(keeper, 3)
    assert world.keys() == [0]
    assert keeper.pending_count == 0
    assert keeper.tail.index.state.open_intents == {}
    assert (world.parts.figures.delivered, world.parts.figures.late_counts[0]) == (1, 1)


def test_each_target_gets_its_messages_in_the_order_of_their_times(world: World) -> None:
    world.add(*(world.message(NOW_MS + 900 - 100 * n, partition=n % 2) for n in range(6)))
    keeper = world.keeper()
    world.clock.now_ms += 1_000
    world.step(keeper)
    assert (world.keys(0), world.keys(1)) == ([4, 2, 0], [5, 3, 1])


def test_what_is_stored_for_the_present_minute_while_it_is_in_memory_comes_too(world: World) -> None:
    world.add(world.message(NOW_MS + 100))
    keeper = world.keeper()
    world.step(keeper)
    world.add(world.message(NOW_MS + 50), world.message(NOW_MS - 1_000_000))
    world.clock.now_ms += 200
    world.step(keeper, 2)
    assert sorted(world.keys()) == [0, 1, 2]


def test_a_clock_that_jumps_back_holds_up_nothing_that_is_due(world: World) -> None:
    world.add(world.message(NOW_MS))
    keeper = world.keeper()
    world.step(keeper)
    world.clock.now_ms -= 3_600_000
    world.add(world.message(NOW_MS - 1_000))
    world.step(keeper, 2)
    assert world.keys() == [0, 1]


def test_a_cancelled_and_a_replaced_message_never_come(world: World) -> None:
    world.add(*(world.message(NOW_MS + 100) for _ in range(3)))
    world.add(world.message(0, replaces=1, is_cancellation=True), world.message(NOW_MS + 150, replaces=2))
    keeper = world.keeper()
    world.clock.now_ms += 1_000
    world.step(keeper, 3)
    assert world.keys() == [0, 4]
    assert world.parts.figures.cancelled == 2
    assert keeper.pending_count == 0


def test_a_message_that_is_stored_twice_comes_once(world: World) -> None:
    message = world.message(NOW_MS + 100)
    world.add(message)
    world.add(message._replace(is_repeated=True))
    keeper = world.keeper()
    world.clock.now_ms += 1_000
    world.step(keeper, 2)
    world.add(message._replace(is_repeated=True))
    world.step(keeper, 2)
    assert world.keys() == [0]


def test_messages_for_a_topic_that_is_deleted_are_dropped_and_counted(world: World) -> None:
    world.add(world.message(NOW_MS + 100))
    (outcome,) = world.broker.run(world.broker.metadata.delete_topics([TOPIC]))
    assert not isinstance(outcome, Exception)
    keeper = world.keeper()
    world.clock.now_ms += 1_000
    world.step(keeper, 3)
    assert world.parts.figures.dropped == 1
    assert keeper.pending_count == 0
    assert keeper.tail.index.state.open_intents == {}


def test_a_target_that_takes_nothing_keeps_only_its_own_messages(world: World) -> None:
    world.add(world.message(NOW_MS, partition=0))
    away = world.broker.services.partitions.find(TOPIC, 0)
    assert away is not None
    epoch = away.leader_epoch
    away.follow(-1, epoch)
    keeper = world.keeper()
    world.step(keeper)
    world.add(world.message(NOW_MS, partition=0), world.message(NOW_MS, partition=1))
    world.step(keeper, 2)
    assert world.keys(1) == [2]
    away.lead(1, epoch)
    for _ in range(20):
        world.step(keeper)
        if len(world.keys(0)) == 2:
            break
        time.sleep(0.1)
    assert world.keys(0) == [0, 1]


def test_a_target_that_is_away_leaves_memory_to_the_others_and_gets_all_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "HELD_FOR_TARGET_MAX", 2)
    monkeypatch.setattr(delivery, "HELD_MAX", 8)
    world.add(world.message(NOW_MS, partition=0))
    away = world.broker.services.partitions.find(TOPIC, 0)
    assert away is not None
    epoch = away.leader_epoch
    away.follow(-1, epoch)
    keeper = world.keeper()
    world.step(keeper)
    world.add(*(world.message(NOW_MS + n, partition=0) for n in range(12)))
    world.add(*(world.message(NOW_MS + 20, partition=1) for _ in range(3)))
    world.clock.now_ms += 100
    world.step(keeper, 3)
    assert world.keys(1) == [13, 14, 15]
    away.lead(1, epoch)
    for _ in range(40):
        world.step(keeper)
        if len(world.keys(0)) == 13:
            break
        time.sleep(0.1)
    world.step(keeper, 2)
    assert world.keys(0) == list(range(13))
    assert (keeper.pending_count, keeper.tail.index.state.open_intents) == (0, {})


def test_an_intent_without_its_messages_holds_nobody_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add(world.message(NOW_MS))
    nobody = Intent(Target(world.topic.topic_id, 0), 1, 0, 0, True, ((NOW_MS, 70_000),))
    batch = bytes(build_plain_batch([encode_intent(nobody)], NOW_MS))
    world.broker.run(world.appends.append(DELAYED_TOPIC, 0, batch))
    keeper = world.keeper()
    world.step(keeper, 3)
    assert world.keys() == [0]
    assert "the intent at 1 cannot be carried out again" in caplog.text
    assert world.parts.figures.dropped == 1
    assert keeper.tail.index.state.open_intents == {}


def test_a_full_disk_is_waited_for(world: World) -> None:
    world.add(world.message(NOW_MS))
    world.appends.refuses = DiskFull("write", "/data", "no space")
    keeper = world.keeper()
    world.step(keeper, 2)
    assert world.keys() == []
    assert len(keeper.tail.index.state.open_intents) == 1
    world.appends.refuses = None
    world.step(world.keeper(), 2)
    assert world.keys() == [0]


def test_one_message_that_is_refused_for_good_takes_no_other_with_it(world: World) -> None:
    world.add(*(world.message(NOW_MS + n, value=b"x" * (5_000 if n == 1 else 10)) for n in range(3)))
    partition = world.broker.services.partitions.find(TOPIC, 0)
    assert partition is not None
    partition.log.set_config(replace(partition.log.config, max_message_bytes=1_000))
    keeper = world.keeper()
    world.clock.now_ms += 1_000
    world.step(keeper, 3)
    assert world.keys() == [0, 2]
    assert world.parts.figures.dropped == 1
    assert keeper.tail.index.state.open_intents == {}


def test_a_backlog_is_delivered_at_the_permitted_rate_and_the_oldest_first(world: World) -> None:
    world.rate_max = 5
    world.add(*(world.message(NOW_MS - n * 60_000) for n in range(20)))
    keeper = world.keeper()
    world.step(keeper)
    assert world.keys() == [19, 18, 17, 16, 15]


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_process_delivers_the_rest_and_nothing_twice(world: World, after: bool) -> None:
    world.add(*(world.message(NOW_MS + n, partition=n % 2) for n in range(10)))
    world.kill_at([0], after=after)
    world.clock.now_ms += 1_000
    keeper = world.keeper()
    with contextlib.suppress(Killed):
        world.step(keeper, 3)
    survivor = world.keeper()
    world.step(survivor, 3)
    assert (world.keys(0), world.keys(1)) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    assert survivor.tail.index.state.open_intents == {}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(st.tuples(st.integers(-500, 5_000), st.integers(0, 1)), max_size=6)
        ),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("time"), st.integers(0, 2_000)),
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.just("kill after"), st.integers(0, 3)),
        st.tuples(st.just("lose index"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_through_any_crashes_every_message_comes_once(actions: list[tuple[str, object]]) -> None:
    directory = Path(tempfile.mkdtemp())
    world = World(directory)
    try:
        play(world, actions)
    finally:
        world.close()
        shutil.rmtree(directory)


def play(world: World, actions: list[tuple[str, object]]) -> None:
    expected: dict[int, int] = {}
    cancelled: dict[int, None] = {}
    world.add(world.message(NOW_MS))
    expected[0] = 0
    keeper = world.keeper()

    def step(times: int) -> None:
        nonlocal keeper
        for _ in range(times):
            try:
                world.step(keeper)
            except Killed:
                keeper = world.keeper()

    for name, what in actions:
        if name == "add":
            assert isinstance(what, list)
            for delay_ms, partition in what:
                expected[world.next_offset] = partition
                assert world.add(world.message(world.clock.now_ms + delay_ms, partition=partition)) is None
        elif name == "cancel":
            assert isinstance(what, int)
            if what in expected:
                world.add(world.message(0, replaces=what, is_cancellation=True, partition=expected[what]))
                cancelled[what] = None
        elif name == "time":
            assert isinstance(what, int)
            world.clock.now_ms += what
        elif name == "step":
            assert isinstance(what, int)
            step(what)
        elif name == "save":
            world.broker.run(keeper.tail.save(0.0, at_once=True))
        elif name == "kill":
            assert isinstance(what, int)
            world.kill_at([what], after=False)
        elif name == "kill after":
            assert isinstance(what, int)
            world.kill_at([what], after=True)
        elif name == "lose index":
            shutil.rmtree(keeper.tail.index.path, ignore_errors=True)
            keeper = world.keeper()
        else:
            keeper = world.keeper()
    world.clock.now_ms += 10_000
    step(12)
    for partition in (0, 1):
        keys = world.keys(partition)
        assert len(keys) == len(set(keys)), keys
        missing = [key for key, its in expected.items() if its == partition and key not in keys]
        assert all(key in cancelled for key in missing), (missing, keys)
    assert keeper.pending_count == 0
    assert keeper.tail.index.state.open_intents == {}
