"""DescribeTopicPartitions: pages of partitions that fit together."""

from __future__ import annotations

from pathlib import Path

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tests.unit.broker.handlers.broker import Broker


def page(
    *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def told(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]


def next_place(response: DescribeTopicPartitionsResponse) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_pages_join_to_the_whole_in_the_order_of_names(broker: Broker) -> None:
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        broker.create_topic(name, count)
    found: list[tuple[str | None, int]] = []
    place: tuple[str, int] | None = None
    for _ in range(10):
        response = broker.ask(page(limit=2, cursor=place), 0)
        found += [(name, index) for name, indexes in told(response) for index in indexes]
        place = next_place(response)
        if place is None:
            break
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_a_page_that_ends_with_a_topic_goes_on_at_the_next(broker: Broker) -> None:
    broker.create_topic("a", 3)
    broker.create_topic("b")
    assert next_place(broker.ask(page("a", limit=3), 0)) is None
    assert next_place(broker.ask(page("a", "b", limit=3), 0)) == ("b", 0)


def test_topics_that_are_not_there_are_told_and_cost_nothing(broker: Broker) -> None:
    topic = broker.create_topic("orders")
    response = broker.ask(page("orders", "orders", "none", "bad name", limit=1), 0)
    assert [(found.name, found.error_code) for found in response.topics] == [
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", ErrorCode.NONE),
    ]
    assert response.topics[2].topic_id == topic.topic_id
    (partition,) = response.topics[2].partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


def test_every_page_has_at_least_one_partition_and_at_most_the_brokers_limit(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"max.request.partition.size.limit": "2"})
    broker.start()
    try:
        broker.create_topic("a", 4)
        assert told(broker.ask(page("a", limit=0), 0)) == [("a", [0])]
        assert told(broker.ask(page("a", limit=-1), 0)) == [("a", [0])]
        assert told(broker.ask(page("a", limit=100), 0)) == [("a", [0, 1])]
    finally:
        broker.stop()


def test_a_cursor_that_does_not_fit_the_question_is_refused(broker: Broker) -> None:
    broker.create_topic("m", 2)
    for cursor in (("z", 0), ("a", 0), ("m", -1)):
        response = broker.ask(page("m", cursor=cursor), 0)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
    assert told(broker.ask(page("m", cursor=("m", 1)), 0)) == [("m", [1])]
    assert told(broker.ask(page("m", cursor=("m", 17)), 0)) == [("m", [])]
    # A topic that was deleted between two pages does not end the reading of all topics.
    assert told(broker.ask(page(cursor=("a", 3)), 0)) == [("m", [0, 1])]
