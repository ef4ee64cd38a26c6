"""OffsetCommit by hand: the same as the compiled codecs say, or nothing at all."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.commit_codec import (
    TOPIC_IDS_FROM,
    is_sole,
    read_commit,
    read_head,
    read_sole,
    topic_name,
)
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VERSIONS = st.integers(2, 10)
NAMES = st.text(max_size=6)
PARTITIONS = st.builds(
    OffsetCommitRequestPartition,
    partition_index=INT32,
    committed_offset=INT64,
    committed_leader_epoch=INT32,
    committed_metadata=st.none() | NAMES | st.just("m" * 120),
)
TOPICS = st.builds(
    OffsetCommitRequestTopic,
    name=NAMES,
    topic_id=st.binary(min_size=16, max_size=16),
    partitions=st.lists(PARTITIONS, max_size=3),
)
USUAL = st.builds(
    OffsetCommitRequest,
    group_id=NAMES,
    generation_id_or_member_epoch=INT32,
    member_id=NAMES,
    group_instance_id=st.none() | NAMES,
    topics=st.lists(TOPICS, max_size=3),
)


def encode(request: OffsetCommitRequest, version: int) -> bytes:
    if version < 7:
        request.group_instance_id = None
    return bytes(schema.request_encoder(ApiKey.OFFSET_COMMIT, version)(request))


@given(USUAL, VERSIONS, st.binary(max_size=3))
def test_a_usual_request_is_read_as_it_was_written(
    request: OffsetCommitRequest, version: int, after: bytes
) -> None:
    wire = encode(request, version)
    commit = read_commit(memoryview(b"head" + wire + after), 4, 4 + len(wire), version)
    if not any(topic.partitions for topic in request.topics):
        assert commit is None
        return
    assert commit is not None
    head, offsets, _ = commit
    assert read_head(head, version) == (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
    )
    read = [
        (
            topic if version >= TOPIC_IDS_FROM else topic_name(topic, version),
            partition,
            offset,
            epoch,
            metadata.decode(),
        )
        for topic, partition, offset, epoch, metadata in offsets
    ]
    assert read == [
        (
            topic.topic_id if version >= TOPIC_IDS_FROM else topic.name,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch if version >= 6 else -1,
            each.committed_metadata or "",
        )
        for topic in request.topics
        for each in topic.partitions
    ]


@given(USUAL, VERSIONS, st.data())
def test_the_answer_around_its_error_codes_is_that_of_the_compiled_encoder(
    request: OffsetCommitRequest, version: int, data: st.DataObject
) -> None:
    wire = encode(request, version)
    commit = read_commit(memoryview(wire), 0, len(wire), version)
    if commit is None:
        return
    _, offsets, around = commit
    codes = data.draw(st.lists(st.integers(-1, 120), min_size=len(offsets), max_size=len(offsets)))
    assert len(around) == len(codes) + 1
    body = around[0]
    for code, following in zip(codes, around[1:], strict=True):
        body += struct.pack(">h", code) + following
    left = iter(codes)
    response = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=next(left))
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    assert body == bytes(schema.response_encoder(ApiKey.OFFSET_COMMIT, version)(response))


@given(USUAL, VERSIONS, st.data())
def test_a_request_that_is_cut_is_left_to_the_other_decoder(
    request: OffsetCommitRequest, version: int, data: st.DataObject
) -> None:
    wire = encode(request, version)
    end = data.draw(st.integers(0, len(wire) - 1))
    for buffer in (wire, wire[:end]):
        assert read_commit(memoryview(buffer), 0, end, version) is None
    assert read_commit(memoryview(wire + b"\0"), 0, len(wire) + 1, version) is None


@given(USUAL, VERSIONS, st.data())
def test_a_damaged_request_is_read_as_the_compiled_decoder_reads_it_or_not_at_all(
    request: OffsetCommitRequest, version: int, data: st.DataObject
) -> None:
    wire = bytearray(encode(request, version))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    commit = read_commit(memoryview(wire), 0, len(wire), version)
    if commit is None:
        return
    try:
        general = schema.request_decoder(ApiKey.OFFSET_COMMIT, version)(bytes(wire))
    except MalformedRequest:
        # It may have met names that are no text, which whoever reads them by hand finds out with them.
        head, offsets, _ = commit
        names = [topic_name(topic, version) for topic, *_ in offsets]
        texts = [metadata for *_, metadata in offsets]
        assert read_head(head, version) is None or None in names or not all(map(is_text, texts)), wire
        return
    assert [offset[1:4] for offset in commit[1]] == [
        (each.partition_index, each.committed_offset, each.committed_leader_epoch if version >= 6 else -1)
        for topic in general.topics
        for each in topic.partitions
    ]


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(USUAL, st.integers(6, 10), INT64, INT32)
def test_a_request_with_one_partition_is_cut_before_its_offset(
    request: OffsetCommitRequest, version: int, offset: int, epoch: int
) -> None:
    wire = encode(request, version)
    commit = read_commit(memoryview(wire), 0, len(wire), version)
    if commit is None or not is_sole(commit):
        return
    sole = read_sole(memoryview(wire), 0, len(wire), version)
    assert sole is not None
    assert sole[1:] == commit[1][0][2:4]
    # The next commit of the same partition has the same first part.
    for topic in request.topics:
        for each in topic.partitions:
            each.committed_offset, each.committed_leader_epoch = offset, epoch
    following = encode(request, version)
    assert read_sole(memoryview(following), 0, len(following), version) == (sole[0], offset, epoch)


def test_what_is_not_sole_is_told_from_what_is() -> None:
    def commit_of(*partitions: OffsetCommitRequestPartition) -> bool:
        topic = OffsetCommitRequestTopic(name="t", partitions=list(partitions))
        wire = encode(OffsetCommitRequest(group_id="g", topics=[topic]), 9)
        commit = read_commit(memoryview(wire), 0, len(wire), 9)
        assert commit is not None
        return is_sole(commit)

    plain = OffsetCommitRequestPartition(partition_index=1, committed_offset=2)
    assert commit_of(plain)
    assert not commit_of(plain, plain)
    assert not commit_of(OffsetCommitRequestPartition(committed_metadata="m"))


def test_versions_without_leader_epochs_are_never_cut_so() -> None:
    assert read_sole(memoryview(bytes(100)), 0, 100, 5) is None
    assert read_sole(memoryview(bytes(100)), 95, 100, 6) is None
    assert read_sole(memoryview(bytes(100)), 95, 100, 9) is None


def test_a_commit_that_sets_a_retention_time_has_no_head() -> None:
    topic = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition()])
    for retention_ms, has_head in ((-1, True), (1000, False)):
        wire = encode(OffsetCommitRequest(group_id="g", retention_time_ms=retention_ms, topics=[topic]), 4)
        commit = read_commit(memoryview(wire), 0, len(wire), 4)
        assert commit is not None
        assert (read_head(commit[0], 4) is not None) is has_head
