"""OffsetCommit, OffsetFetch and OffsetDelete as clients of every version see them; the answers are those of
Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.groups.members import commit, member


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_version(groups: Broker, version: int) -> None:
    assert commit(groups, version) == ErrorCode.NONE
    assert commit(groups, version, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(groups, version, topic="absent") == unknown
    missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert commit(groups, version, group_id="absent", generation_id_or_member_epoch=3) == missing


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group(groups: Broker, version: int) -> None:
    commit(groups)
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    answer = groups.ask(OffsetFetchRequest(group_id="g", topics=topics), version)
    found = [(each.committed_offset, each.metadata, each.error_code) for each in answer.topics[0].partitions]
    assert found == [(5, "", 0), (-1, "", 0)]
    if version >= 2:
        every = groups.ask(OffsetFetchRequest(group_id="g", topics=None), version)
        assert [[each.partition_index for each in topic.partitions] for topic in every.topics] == [[0]]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_several_groups(groups: Broker, version: int) -> None:
    commit(groups)
    topic = OffsetFetchRequestTopics(partition_indexes=[0, 1])
    if version < 10:
        topic.name = "t"
    else:
        topic.topic_id = groups.metadata.image.topics["t"].topic_id
    wanted = [
        OffsetFetchRequestGroup(group_id="g", topics=[topic]),
        OffsetFetchRequestGroup(group_id="absent", topics=[topic]),
        OffsetFetchRequestGroup(group_id="g", topics=None),
    ]
    answer = groups.ask(OffsetFetchRequest(groups=wanted), version)
    assert [each.error_code for each in answer.groups] == [0, 0, 0]
    offsets = [[p.committed_offset for p in each.topics[0].partitions] for each in answer.groups]
    assert offsets == [[5, -1], [-1, -1], [5]]


def test_an_unknown_topic_id_has_no_offsets(groups: Broker) -> None:
    topic = OffsetFetchRequestTopics(topic_id=bytes(range(16)), partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[topic])])
    (found,) = groups.ask(request, 10).groups[0].topics[0].partitions
    assert (found.committed_offset, found.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


def test_deleting_offsets(groups: Broker) -> None:
    member_id = member(groups)
    groups.create_topic("u")
    commit(groups, 8, member_id=member_id, generation_id_or_member_epoch=1)
    commit(groups, 8, topic="u", member_id=member_id, generation_id_or_member_epoch=1)

    def delete(group: str, *topics: str) -> Any:
        wanted = [
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for topic in topics
        ]
        return groups.ask(OffsetDeleteRequest(group_id=group, topics=wanted), 0)

    answer = delete("g", "t", "u", "absent")
    assert [topic.partitions[0].error_code for topic in answer.topics] == [86, 0, 3]
    assert delete("absent", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_topic_is_forgotten_by_groups(groups: Broker) -> None:
    commit(groups)
    groups.run(groups.metadata.delete_topics(["t"]))
    answer = groups.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
    assert answer.topics == []


@pytest.mark.parametrize("version", [7, 9, 10])
def test_offsets_of_a_former_topic_of_the_same_name_are_not_those_of_the_new_one(
    groups: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F29: the broker dies between deleting the topic and its offsets.
    commit(groups)
    monkeypatch.setattr(groups.groups.runtime, "submit", lambda index, command: None)
    groups.run(groups.metadata.delete_topics(["t"]))
    monkeypatch.undo()
    groups.create_topic("t", 3)
    if version < 8:
        asked = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        (found,) = groups.ask(OffsetFetchRequest(group_id="g", topics=[asked]), version).topics[0].partitions
        assert groups.ask(OffsetFetchRequest(group_id="g", topics=None), version).topics == []
    else:
        topic = OffsetFetchRequestTopics(partition_indexes=[0])
        if version < 10:
            topic.name = "t"
        else:
            topic.topic_id = groups.metadata.image.topics["t"].topic_id
        wanted = [OffsetFetchRequestGroup(group_id="g", topics=[topic])]
        (found,) = groups.ask(OffsetFetchRequest(groups=wanted), version).groups[0].topics[0].partitions
    assert found.committed_offset == -1
