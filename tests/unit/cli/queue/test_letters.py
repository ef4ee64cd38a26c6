"""Dead letters are told from other records, counted by kind, and made what they were."""

from __future__ import annotations

from typing import cast

import click
import pytest

from millrace.cli.queue import letters, reading
from millrace.cli.queue.letters import Count, Heap
from millrace.client.broker_client import BrokerClient
from millrace.core.ids import TopicPartition
from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.wire.records import Record
from tests.unit.cli.queue.fakes import Cluster, letter

PLACE = TopicPartition("dlq", 0)


def read(group: str | None) -> list[letters.Letter]:
    cluster = Cluster({"dlq": 1})
    cluster.add(
        PLACE,
        letter(0),
        letter(1, DeadLetterCause.EXPIRED),
        letter(2, group="other"),
        Record(3, 0, None, b"none of ours"),
        letter(4, topic="mails"),
    )
    client = cast("BrokerClient", cluster)
    return list(letters.read_letters(client, reading.topic_named(client, "dlq"), 0, range(5), group=group))


def test_letters_are_those_of_the_group_and_nothing_else() -> None:
    assert [each.record.offset for each in read("g")] == [0, 1, 4]
    assert [each.record.offset for each in read(None)] == [0, 1, 2, 4]
    assert [each.cause for each in read("g")] == ["rejected", "expired", "rejected"]


def test_letters_are_counted_by_group_source_and_cause() -> None:
    assert letters.count(iter(read(None)), (), ()) == {
        Heap("g", "jobs", "expired"): Count(1, 1001, 1001),
        Heap("g", "jobs", "rejected"): Count(1, 1000, 1000),
        Heap("g", "mails", "rejected"): Count(1, 1004, 1004),
        Heap("other", "jobs", "rejected"): Count(1, 1002, 1002),
    }
    assert list(letters.count(iter(read("g")), ("rejected",), ("mails",))) == [Heap("g", "mails", "rejected")]


def test_every_cause_has_a_name() -> None:
    assert set(letters.CAUSES) == {*DeadLetterCause, None}


def test_what_a_letter_adds_is_taken_off() -> None:
    assert letters.without_marks(letter(3), 9) == Record(3, 9, None, b"v3", (("own", b"x"),))


def test_the_topic_is_the_one_named_or_the_groups() -> None:
    assert letters.dead_letter_topic({"s": "dlq"}, "s", "g", None) == "dlq"
    assert letters.dead_letter_topic({"s": "dlq"}, "s", "g", "mine") == "mine"
    with pytest.raises(click.UsageError, match="no dead-letter topic"):
        letters.dead_letter_topic({}, "s", "g", None)
