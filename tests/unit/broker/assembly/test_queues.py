"""Share partitions follow leaders, topics and settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.queues import start_dead_letters, start_shares
from millrace.broker.config.config import load
from millrace.core.ids import TopicId
from millrace.metadata.image import EMPTY
from tests.harness.background import background
from tests.unit.broker.assembly.grounds import ground_of

TOPIC = TopicId(b"t" * 16)


def test_settings_of_the_broker_the_group_and_the_topic_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, background=tasks)
            listeners: list[Any] = []
            image = SimpleNamespace(
                group_configs={"g": {"share.delivery.count.limit": "7"}},
                topics_by_id={TOPIC: SimpleNamespace(configs={"queue.priority": "12"})},
            )
            metadata = Mock(image=image)
            replicas = cast("Any", SimpleNamespace(subscribe=listeners.append))
            shares = start_shares(ground, metadata, replicas, Mock())
            assert listeners == [shares.leadership_changed]
            metadata.subscribe.assert_called_once_with(shares.metadata_changed)
            assert shares.settings_of("g").delivery_count_limit == 7
            assert shares.settings_of("other").delivery_count_limit == 5
            assert shares.priority_of((TOPIC, 0)) == 12
            assert shares.priority_of((TopicId(bytes(16)), 0)) == 0
            config = load(
                None,
                {"group.share.delivery.count.limit": "9", "group.share.max.share.sessions": "3000"},
                {},
            )
            ground.config.replace(config)
            assert shares.settings_of("other").delivery_count_limit == 9
            assert shares.settings_of("g").delivery_count_limit == 7
            assert shares.sessions.sessions_max == 3000
            assert EMPTY.group_configs == {}

    asyncio.run(main())


def test_what_share_partitions_give_up_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, background=tasks)
            shares = start_shares(ground, Mock(), Mock(), Mock())
            dead_letters = start_dead_letters(ground, Mock(), Mock(), Mock(), shares, Mock())
            assert shares.write_dead_letters == dead_letters.write
            settings = part_settings.dead_letter_settings(ground.config.now)
            assert (settings.topic_prefix, settings.creates_topics) == ("dlq.", False)
            assert not part_settings.takes_dead_letters(ground.config.now)
            assert part_settings.takes_dead_letters(ground.config.now, settings.new_topic_configs)

    asyncio.run(main())
