"""Few messages of the far future hold back no old segments: they are stored again, and come once."""

from __future__ import annotations

from pathlib import Path

from millrace.broker.queues.delayed.stragglers import FEW, runs_to_move
from millrace.queues.delayed.index import DAY_MS
from millrace.queues.delayed.state import RUN, StoreState
from tests.unit.broker.handlers.broker import NOW_MS
from tests.unit.broker.queues.delayed.world import World

MIB = 1024 * 1024


def state_with(counts: dict[int, int], next_offset: int) -> StoreState:
    state = StoreState()
    state.counts, state.next_offset = counts, next_offset
    return state


def test_they_move_when_they_hold_back_more_than_half_a_segment() -> None:
    few = state_with({0: 3, 90: 4000}, 100 * RUN)
    assert runs_to_move(few, log_start_offset=0, log_bytes=10 * MIB, segment_bytes=MIB) == [0]
    assert runs_to_move(few, log_start_offset=0, log_bytes=MIB, segment_bytes=MIB) == []
    near = state_with({0: 3, 2: 4000}, 100 * RUN)
    assert runs_to_move(near, log_start_offset=0, log_bytes=10 * MIB, segment_bytes=MIB) == []


def test_many_stay_where_they_are_and_so_does_the_end_of_the_log() -> None:
    many = state_with({0: FEW + 1, 90: 5}, 100 * RUN)
    assert runs_to_move(many, log_start_offset=0, log_bytes=10 * MIB, segment_bytes=MIB) == []
    end = state_with({99: 5}, 99 * RUN + 10)
    assert runs_to_move(end, log_start_offset=98 * RUN, log_bytes=10 * MIB, segment_bytes=MIB) == []
    assert runs_to_move(StoreState(), log_start_offset=0, log_bytes=MIB, segment_bytes=1) == []


def test_a_moved_message_frees_the_log_and_comes_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        straggler = world.message(NOW_MS + DAY_MS, partition=1)
        world.add(straggler)
        for _ in range(30):
            world.add(*(world.message(NOW_MS, value=bytes(400)) for _ in range(200)))
        keeper = world.keeper()
        world.rate_max = 100_000
        for _ in range(6):
            world.step(keeper)
            world.broker.run(keeper.tail.save(0.0, at_once=True))
            keeper.trimmed_at = -1000.0
        assert world.parts.figures.moved == 1
        assert world.partition.log.log_start_offset >= RUN
        world.clock.now_ms += DAY_MS
        world.step(keeper, 3)
        assert world.keys(1) == [0]
        assert len(world.keys(0)) == 6_000
        assert keeper.pending_count == 0
    finally:
        world.close()
