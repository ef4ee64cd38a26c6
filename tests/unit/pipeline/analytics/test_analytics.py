"""What analytics make of measurements, without Spark: percentiles, chains of runs, skew, reports."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path

import pytest

from millrace.core.override import override
from millrace.pipeline.analytics import page, plots, table
from millrace.pipeline.analytics.arrivals import batch_delays
from millrace.pipeline.analytics.lag import watch
from millrace.pipeline.analytics.measurement import Measure, Measurement, class_bounds, class_of, percentile
from millrace.pipeline.analytics.measures import key_text
from millrace.pipeline.analytics.ranges import bucket_ms_for
from millrace.pipeline.analytics.summary import TopicSummary, chained_runs, summarize
from tests.harness.batches import batch

DAY_MS = 86_400_000


def one(measure: Measure, value: float, **more: object) -> Measurement:
    given = {"run_ms": 1, "topic": "orders", "measure": measure, "value": value} | more
    return Measurement(**given)  # type: ignore[arg-type]


def ranges(run_ms: int, start: dict[int, int], end: dict[int, int], topic_id: str = "a") -> list[Measurement]:
    pairs = ((Measure.START_OFFSET, start), (Measure.END_OFFSET, end))
    return [
        one(measure, offset, run_ms=run_ms, partition=partition, label=topic_id)
        for measure, offsets in pairs
        for partition, offset in offsets.items()
    ]


def example() -> list[Measurement]:
    """A topic with a hot partition, an empty one, sizes, latencies, keys that need escaping, and lag."""
    found = ranges(1, {0: 0, 1: 0, 2: 0}, {0: 900, 1: 100, 2: 0})
    found.append(one(Measure.BUCKET_MS, 10_000))
    for number in range(12):
        for partition, messages in ((0, 75), (1, 8)):
            place = {"partition": partition, "time_ms": number * 10_000}
            found.append(one(Measure.MESSAGES, messages, **place))
            found.append(one(Measure.BYTES, messages * 120, **place))
    found += [one(Measure.SIZES, 10 * (size + 1), label=str(size)) for size in range(48, 60)]
    found.append(one(Measure.SIZE_MAX, 170))
    found += [one(Measure.LATENCIES, 5, label=str(each)) for each in (-2, -1, 0, 8, 16, 17)]
    found.append(one(Measure.LATENCY_MAX, 4.5))
    for key, messages in (("<b>&\"'", 500), ("$x_1$", 20), ("plain", 10)):
        found.append(one(Measure.KEY_MESSAGES, messages, label=key, partition=0))
        found.append(one(Measure.KEY_BYTES, messages * 10, label=key, partition=0))
    found += [one(Measure.KEYS, 3), one(Measure.NULL_KEYS, 7)]
    for number in range(5):
        for partition in (0, 1):
            found.append(
                one(Measure.LAG, 100 - 10 * number, partition=partition, time_ms=number, label="billing")
            )
    return found


def test_every_value_lies_in_its_class() -> None:
    generator = random.Random(1)
    for value in [1.0, 1.5, 2.0, 1024.0, *(generator.uniform(1, 1e9) for _ in range(200))]:
        low, high = class_bounds(class_of(value))
        assert low * 0.999999 <= value <= high * 1.000001, value
    assert class_of(0) == -1
    assert class_of(-3) == -2


def test_percentiles_from_classes_are_within_their_bound() -> None:
    generator = random.Random(2)
    values = sorted(generator.lognormvariate(6, 1) + 1 for _ in range(5_000))
    counts: dict[int, float] = {}
    for value in values:
        counts[class_of(value)] = counts.get(class_of(value), 0) + 1
    for share in (0.5, 0.9, 0.99):
        exact = values[int(share * len(values))]
        assert percentile(counts, share) == pytest.approx(exact, rel=0.1)
    assert percentile({}, 0.5) is None


def test_a_hot_partition_and_skew_are_seen() -> None:
    summary = summarize(example(), "orders")
    assert [each.partition for each in summary.hot_partitions] == [0]
    assert len(summary.partitions) == 3
    assert summary.messages == 12 * 83
    assert summary.skew == pytest.approx(3 * 75 / 83)
    assert summary.span_s == 120
    assert summary.peak_per_s == pytest.approx(8.3)
    assert summary.lag == {"billing": [(number, 2 * (100 - 10 * number)) for number in range(5)]}
    assert summary.latencies is not None
    assert summary.latencies.negative == 5
    assert summary.sizes is not None
    assert summary.sizes.p99 is not None
    assert summary.sizes.p50 is not None
    assert summary.sizes.p50 < summary.sizes.p99 <= 170


def test_runs_that_continue_each_other_are_added_up() -> None:
    found = ranges(1, {0: 0}, {0: 10}) + ranges(2, {0: 10}, {0: 30})
    found += [one(Measure.MESSAGES, 10, partition=0, time_ms=0)]
    found += [one(Measure.MESSAGES, 20, run_ms=2, partition=0, time_ms=500)]
    assert chained_runs(found) == {1, 2}
    assert summarize(found, "orders").messages == 30


def test_a_run_that_reads_again_stands_alone() -> None:
    found = ranges(1, {0: 0}, {0: 10}) + ranges(2, {0: 0}, {0: 30})
    assert chained_runs(found) == {2}


def test_a_topic_that_was_made_anew_begins_a_new_chain() -> None:
    found = ranges(1, {0: 0}, {0: 10}) + ranges(2, {0: 10}, {0: 30}, topic_id="b")
    assert chained_runs(found) == {2}
    ends = table.last_ends(found, "orders")
    assert (ends[0].topic_id, ends[0].offset) == ("b", 30)


def test_partitions_added_later_do_not_break_the_chain() -> None:
    found = ranges(1, {0: 0}, {0: 10}) + ranges(2, {0: 10, 1: 0}, {0: 30, 1: 5})
    assert chained_runs(found) == {1, 2}


@pytest.mark.parametrize(
    "span_ms,bucket_ms",
    [(0, 1_000), (60_000, 1_000), (3_600_000, 30_000), (7 * DAY_MS, 7_200_000), (400 * DAY_MS, 4 * DAY_MS)],
)
def test_time_steps_are_round_and_not_too_many(span_ms: int, bucket_ms: int) -> None:
    assert bucket_ms_for(span_ms) == bucket_ms


@pytest.mark.parametrize(
    "key,text",
    [(b"42", "42"), (b"\x00\x01", "0x0001"), (b"", ""), ("größe".encode(), "größe"), (b"\xff", "0xff")],
)
def test_keys_are_shown_as_text_or_digits(key: bytes, text: str) -> None:
    assert key_text(key) == text


def test_long_keys_are_cut() -> None:
    assert len(key_text(b"x" * 500)) == 80


def test_batches_are_timed_by_their_newest_record() -> None:
    data = batch([b"a", b"b"], timestamp_ms=1_000) + batch([b"c"], timestamp_ms=4_000, attributes=0x20)
    data += batch([b"d"], timestamp_ms=3_000, attributes=0x08) + batch([b"e"], timestamp_ms=2_500)[:-1]
    # Brokers number batches; here each begins at 0, so that only the first two offsets count.
    assert list(batch_delays(memoryview(data), 0, 5_000)) == [(2, 2, 4_000), (1, 0, 1_000), (1, 0, 2_000)]
    assert list(batch_delays(memoryview(data), 2, 5_000)) == []


def test_watching_looks_at_once_and_then_at_intervals() -> None:
    looks = list(watch(list, duration_s=0.03, every_s=0.01))
    assert 1 <= len(looks) <= 4
    assert len(list(watch(list, duration_s=0, every_s=1))) == 1


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_shows_every_panel_and_brings_all_it_needs_along() -> None:
    summary = summarize(example(), "orders")
    text = page.render([summary], made_ms=1_700_000_000_000, source="broker 127.0.0.1:9092")
    outline = Outline()
    outline.feed(text)
    assert outline.tags.count("figure") == len(plots.panels_of(summary)) == 7
    assert outline.tags.count("svg") == 7
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert all(link.startswith("#") for link in outline.links), outline.links
    assert "url(http" not in text
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text


def test_a_topic_without_messages_gets_a_page_too() -> None:
    text = page.render([TopicSummary("empty")], made_ms=0, source="nowhere")
    assert "No messages" in text


@pytest.mark.slow
def test_the_picture_is_a_png_of_all_topics(tmp_path: Path) -> None:
    plots.write_png(
        [summarize(example(), "orders"), TopicSummary("empty")], tmp_path / "report.png", "Topics"
    )
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
