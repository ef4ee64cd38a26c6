"""Figures of share groups: as they are counted, measured and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import Metric

from millrace.broker.queues.live_share import LiveShare, ShareStats
from millrace.broker.queues.share_partitions import SharePartitions
from millrace.broker.watching.queue_figures import (
    COUNTS,
    QueueFigures,
    queue_document,
    queue_families,
    queue_figures,
)
from millrace.groups.lag import Lag, LagReader


class Lags:
    async def measure(self, wanted: Sequence[tuple[str, int, int]]) -> list[Lag | None]:
        return [Lag(100, 100 - start, 2_500) for _, _, start in wanted]


def share(start_offset: int, **rules: Any) -> LiveShare:
    log = SimpleNamespace(high_watermark=100)
    known = {
        "start_offset": start_offset,
        "delivery_complete_count": 4,
        "acquired_count": 3,
        "archiving_count": 1,
        "is_delivering": lambda now_ms: now_ms > 5,
    }
    partition = SimpleNamespace(topic="t", index=0, log=log)
    return cast("LiveShare", FakeShare(SimpleNamespace(**known | rules), partition))


class FakeShare:
    def __init__(self, rules: object, partition: object = None) -> None:
        self.rules = rules
        self.partition = partition


def figures_of(*shares: LiveShare, group: str | None = None, now_ms: int = 9) -> list[QueueFigures]:
    stats = ShareStats()
    stats.acquired, stats.accept, stats.lock_timeouts = 10, 6, 2
    all_of_them = SimpleNamespace(groups={"g": dict(enumerate(shares))}, stats={"g": stats})
    return asyncio.run(
        queue_figures(cast("SharePartitions", all_of_them), cast("LagReader", Lags()), now_ms, group)
    )


def test_a_group_is_counted_and_measured() -> None:
    (found,) = figures_of(share(40))
    assert (found.counts["acquired"], found.counts["accepted"], found.counts["lock_timeouts"]) == (10, 6, 2)
    (partition,) = found.partitions
    assert (partition.lag, partition.oldest_age_ms, partition.in_flight) == (56, 2_500, 3)
    assert partition.is_delivering
    assert not figures_of(share(40), now_ms=1)[0].partitions[0].is_delivering
    assert queue_document(found)["partitions"][0]["dead_letters_waiting"] == 1


def test_what_is_done_has_no_age_and_what_is_being_read_no_figures() -> None:
    unread = cast("LiveShare", FakeShare(None))
    (found,) = figures_of(share(100, delivery_complete_count=0), unread)
    (partition,) = found.partitions
    assert (partition.lag, partition.oldest_age_ms) == (0, None)


def test_a_group_that_is_not_here_has_no_figures() -> None:
    assert figures_of(share(40), group="other") == []
    assert [each.group for each in figures_of(share(40), group="g")] == ["g"]


def test_every_figure_has_its_metric() -> None:
    families: dict[str, Metric] = {each.name: each for each in queue_families(figures_of(share(40)))}
    for name, _ in COUNTS:
        assert families[f"millrace_share_{name}"].samples[0].labels == {"group": "g"}
    (age,) = families["millrace_share_oldest_age_seconds"].samples
    assert (age.value, age.labels) == (2.5, {"group": "g", "topic": "t", "partition": "0"})
    assert families["millrace_share_in_flight"].samples[0].value == 3
    assert families["millrace_share_delivering"].samples[0].value == 1
