"""Each offset of a commit has its own answer: an unknown partition at once, the others with the group's."""

from __future__ import annotations

from millrace.broker.handlers.groups.commit_places import CommitPlaces, commit_error_code
from millrace.coordinator.errors import NotCoordinator, RecordsTooLarge
from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.groups.commands import OffsetsCommitted, OffsetToCommit
from millrace.groups.errors import OffsetMetadataTooLarge
from millrace.metadata.image import PartitionState, TopicState
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitResponsePartition

ID = TopicId(b"0123456789abcdef")
NODE = NodeId(1)
TOPIC = TopicState(
    name="t",
    topic_id=ID,
    partitions=(PartitionState(NODE, Epoch(0), (NODE,), (NODE,), 0),) * 2,
    configs={},
    internal=False,
    mod_revision=0,
)


def asked(partition: int, metadata: str | None = None) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=100 + partition,
        committed_leader_epoch=7,
        committed_metadata=metadata,
    )


def filled() -> tuple[CommitPlaces, list[OffsetCommitResponsePartition]]:
    """Partition 0, one that does not exist, partition 1, and one of a topic that does not exist."""
    commit = CommitPlaces()
    places = [OffsetCommitResponsePartition() for _ in range(4)]
    commit.add(TOPIC, asked(0, "note"), places[0])
    commit.add(TOPIC, asked(2), places[1])
    commit.add(TOPIC, asked(1), places[2])
    commit.add(None, asked(0), places[3], unknown_topic=ErrorCode.UNKNOWN_TOPIC_ID)
    return commit, places


def codes(places: list[OffsetCommitResponsePartition]) -> list[int]:
    return [place.error_code for place in places]


def test_only_partitions_that_exist_are_given_to_the_group() -> None:
    commit, places = filled()
    assert commit.offsets == [
        OffsetToCommit("t", 0, 100, 7, "note", ID),
        OffsetToCommit("t", 1, 101, 7, "", ID),
    ]
    assert codes(places) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, ErrorCode.UNKNOWN_TOPIC_ID]


def test_a_negative_partition_does_not_exist() -> None:
    commit, place = CommitPlaces(), OffsetCommitResponsePartition()
    commit.add(TOPIC, asked(-1), place)
    assert not commit.offsets
    assert place.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_offset_gets_its_own_outcome() -> None:
    commit, places = filled()
    _ = commit.answer(OffsetsCommitted([None, OffsetMetadataTooLarge(5, size_max=4)]), None)
    assert codes(places) == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]


def test_a_commit_that_is_refused_as_a_whole_leaves_the_answers_that_stand() -> None:
    commit, places = filled()
    _ = commit.answer(NotCoordinator("here"), None)
    refused = ErrorCode.NOT_COORDINATOR
    standing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    assert codes(places) == [refused, standing[0], refused, standing[1]]
    _ = commit.answer(NotCoordinator("here"), None, lambda error: ErrorCode.INVALID_TXN_STATE)
    assert codes(places)[0] == ErrorCode.INVALID_TXN_STATE


def test_records_that_fit_into_no_batch_are_the_clients_fault() -> None:
    assert commit_error_code(RecordsTooLarge(10, size_bytes_max=5)) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
