"""The index keeps up with the log, and is built again when it does not fit it."""

from __future__ import annotations

import shutil

import pytest

from millrace.broker.queues.delayed.tailing import Tail
from tests.unit.broker.handlers.broker import NOW_MS
from tests.unit.broker.queues.delayed.world import World


def tail_of(world: World) -> Tail:
    return Tail(world.partition.log, world.volume, world.clock)


def test_what_is_committed_is_indexed(world: World) -> None:
    world.add(*(world.message(NOW_MS + n) for n in range(200)))
    tail = tail_of(world)
    world.broker.run(tail.follow())
    assert tail.is_at_end
    assert tail.index.state.pending_count == 200


def test_a_restart_reads_only_what_is_new(world: World) -> None:
    world.add(*(world.message(NOW_MS + n) for n in range(100)))
    first = tail_of(world)
    world.broker.run(first.follow())
    assert world.broker.run(first.save(100.0))
    assert not world.broker.run(first.save(101.0))
    world.add(world.message(NOW_MS))
    again = tail_of(world)
    world.broker.run(again.open())
    assert again.index.state.next_offset == 100
    world.broker.run(again.follow())
    assert again.index.state.pending_count == 101


@pytest.mark.parametrize("what", ["gone", "other log", "ahead"])
def test_an_index_that_does_not_fit_is_built_again(world: World, what: str) -> None:
    world.add(*(world.message(NOW_MS + n) for n in range(10)))
    first = tail_of(world)
    world.broker.run(first.follow())
    if what == "other log":
        first.index.last_batch = first.index.last_batch._replace(crc=1)
    if what == "ahead":
        first.index.state.next_offset += 5
    world.broker.run(first.save(100.0, at_once=True))
    if what == "gone":
        shutil.rmtree(first.index.path)
    again = tail_of(world)
    world.broker.run(again.follow())
    assert (again.index.state.next_offset, again.index.state.pending_count) == (10, 10)


def test_an_index_behind_the_start_of_the_log_begins_there(world: World) -> None:
    world.add(*(world.message(NOW_MS + n) for n in range(10)))
    tail = tail_of(world)
    world.broker.run(tail.open())
    world.broker.run(world.partition.log.delete_records_before(4))
    world.broker.run(tail.follow())
    # The batch that holds the log's start is read from there on.
    assert tail.index.state.pending_count == 6
