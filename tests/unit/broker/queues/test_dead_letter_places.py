"""This broker is one producer to each partition of dead letters, until it loses count."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.queues.dead_letter_places import Place, Places
from millrace.core.ids import TopicPartition
from millrace.queues.dead_letters import Stamp

AT = TopicPartition("dlq.a", 0)


def test_stamps_count_records_and_begin_anew_with_another_producer() -> None:
    ids = iter((7, 8))

    async def next_id() -> int:
        return next(ids)

    async def main() -> None:
        place = Place(AT)
        assert await place.stamp(next_id) == Stamp(7, 0)
        assert await place.stamp(next_id) == Stamp(7, 0), "as long as it is not stored"
        place.stored(500)
        assert await place.stamp(next_id) == Stamp(7, 500)
        place.begin_anew()
        assert await place.stamp(next_id) == Stamp(8, 0)

    asyncio.run(main())


def test_places_of_topics_that_are_gone_are_forgotten() -> None:
    async def main() -> None:
        places = Places()
        image: Any = SimpleNamespace(topics={"dlq.a": 1, "dlq.b": 1, "dlq.c": 1})
        first, second = places.find(AT, image), places.find(TopicPartition("dlq.b", 0), image)
        assert places.find(AT, image) is first
        del image.topics["dlq.a"], image.topics["dlq.b"]
        async with second.lock:
            places.find(TopicPartition("dlq.c", 0), cast("Any", image))
            assert len(places) == 2, "somebody is about to write to one of them"
            assert places.find(TopicPartition("dlq.b", 0), image) is second

    asyncio.run(main())
