"""The limits that are no settings hold what their reasons say."""

from __future__ import annotations

from millrace.core.ids import TopicPartition
from millrace.core.limits import PARTITIONS_PER_TOPIC_MAX, REQUEST_PARTITIONS_MAX, TOPIC_NAME_LENGTH_MAX

NAME_BYTES_MAX = 255
"""Of a file, in every file system that we meet."""


def test_the_directory_of_every_partition_of_the_longest_name_fits_into_a_file_name() -> None:
    longest = TopicPartition("t" * TOPIC_NAME_LENGTH_MAX, PARTITIONS_PER_TOPIC_MAX - 1)
    assert len(str(longest)) <= NAME_BYTES_MAX


def test_one_request_may_name_all_partitions_of_the_largest_topic() -> None:
    assert REQUEST_PARTITIONS_MAX >= PARTITIONS_PER_TOPIC_MAX + 1
