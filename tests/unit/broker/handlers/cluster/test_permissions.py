"""The bit sets of allowed operations, as clients of Kafka read them."""

from __future__ import annotations

from millrace.broker.handlers.cluster.permissions import (
    ALL_CLUSTER_OPERATIONS,
    ALL_GROUP_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    NOT_ASKED,
    Operation,
)


def allowed(bits: int) -> set[str]:
    return {operation.name for operation in Operation if bits >> operation & 1}


def test_everything_that_can_be_done_with_a_topic_is_allowed() -> None:
    assert allowed(ALL_TOPIC_OPERATIONS) == {
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
    }


def test_the_bit_sets_are_those_that_kafka_answers_without_an_authorizer() -> None:
    assert (ALL_TOPIC_OPERATIONS, ALL_GROUP_OPERATIONS, ALL_CLUSTER_OPERATIONS) == (3576, 3400, 8096)


def test_not_asked_is_told_from_nothing_being_allowed() -> None:
    assert NOT_ASKED == -2147483648
    assert allowed(NOT_ASKED) == set()
