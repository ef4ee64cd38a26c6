"""Single messages are read from anywhere in the store, and what is not there is left out."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.broker.queues.delayed.reading import read_at, records_of
from millrace.queues.delayed.codec import StoredMessage
from millrace.wire.records import build_plain_batch
from tests.unit.broker.handlers.broker import NOW_MS
from tests.unit.broker.queues.delayed.world import World


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 420), unique=True, max_size=40))
def test_the_messages_at_these_offsets_come_back(world: World, offsets: list[int]) -> None:
    if world.next_offset == 0:
        for _ in range(10):
            world.add(*(world.message(NOW_MS) for _ in range(40)))
    log = world.partition.log
    found = world.broker.run(read_at(log, world.volume, offsets))
    assert sorted(found) == sorted(offset for offset in offsets if offset < 400)
    for offset, stored in found.items():
        assert isinstance(stored, StoredMessage)
        assert stored.id.offset == offset


def test_a_record_that_nobody_understands_is_skipped() -> None:
    batch = bytes(build_plain_batch([(b"", b"?"), (b"\x63\0", b"later")], NOW_MS))
    ((header, records),) = records_of(batch, "store")
    assert header.records_count == 2
    assert records == []
