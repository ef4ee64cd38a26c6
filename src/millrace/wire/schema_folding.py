"""What the schema cannot say about old versions: fields that moved, and absence that means something.

A request of an old version is folded into the shape of the newest one after decoding, a response is unfolded
before encoding, so that a handler knows only the newest shape. It leaves alone APIs between Kafka's own
controllers (AlterPartition, EndQuorumEpoch) and what only the cluster's metadata can translate: topic names
into topic ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.wire.schema_decoder import Decoder
from millrace.wire.schema_encoder import Encoder
from millrace.wire.schema_fields import Message

if TYPE_CHECKING:
    from millrace.wire.messages.add_partitions_to_txn import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
    )
    from millrace.wire.messages.delete_topics import DeleteTopicsRequest
    from millrace.wire.messages.fetch import FetchRequest
    from millrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
    from millrace.wire.messages.join_group import JoinGroupRequest
    from millrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
    from millrace.wire.messages.metadata import MetadataRequest
    from millrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
    from millrace.wire.messages.update_features import UpdateFeaturesRequest

SAFE_DOWNGRADE: Final = 2


class Fold(NamedTuple):
    """A rule for old versions of one message."""

    last_version: int
    """The newest version that needs the rule; all older ones need it too."""
    apply: Callable[[Any], None]


def fold_request(cls: type[Message], version: int, decode: Decoder) -> Decoder:
    """The decoder itself, or one that also brings the request into its newest shape."""
    fold = REQUEST_FOLDS.get(cls.__name__)
    if fold is None or version > fold.last_version:
        return decode
    apply = fold.apply

    def decode_and_fold(
        buffer: bytes | bytearray | memoryview, position: int = 0, end: int | None = None
    ) -> object:
        request = decode(buffer, position, end)
        apply(request)
        return request

    return decode_and_fold


def unfold_response(cls: type[Message], version: int, encode: Encoder) -> Encoder:
    """The encoder itself, or one that first fills the fields that only old versions have."""
    fold = RESPONSE_FOLDS.get(cls.__name__)
    if fold is None or version > fold.last_version:
        return encode
    apply = fold.apply

    def unfold_and_encode(response: object) -> bytes:
        apply(response)
        return encode(response)

    return unfold_and_encode


def _metadata_request(request: MetadataRequest) -> None:
    # Version 0 has no null: there an empty list asks for all topics. From version 1 on it asks for none.
    if not request.topics:
        request.topics = None


def _join_group_request(request: JoinGroupRequest) -> None:
    # Version 0 knows one timeout for both purposes.
    request.rebalance_timeout_ms = request.session_timeout_ms


def _fetch_request(request: FetchRequest) -> None:
    request.replica_state.replica_id = request.replica_id


def _find_coordinator_request(request: FindCoordinatorRequest) -> None:
    request.coordinator_keys = [request.key]


def _leave_group_request(request: LeaveGroupRequest) -> None:
    from millrace.wire.messages.leave_group import MemberIdentity

    request.members = [MemberIdentity(member_id=request.member_id)]


def _delete_topics_request(request: DeleteTopicsRequest) -> None:
    from millrace.wire.messages.delete_topics import DeleteTopicState

    request.topics = [DeleteTopicState(name=name) for name in request.topic_names]


def _offset_fetch_request(request: OffsetFetchRequest) -> None:
    from millrace.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

    # Null asks for all topics of the group, before and after.
    topics = (
        None
        if request.topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    )
    request.groups = [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _add_partitions_to_txn_request(request: AddPartitionsToTxnRequest) -> None:
    from millrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTransaction

    request.transactions = [
        AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def _update_features_request(request: UpdateFeaturesRequest) -> None:
    for update in request.feature_updates:
        if update.allow_downgrade:
            update.upgrade_type = SAFE_DOWNGRADE


def _find_coordinator_response(response: FindCoordinatorResponse) -> None:
    if response.coordinators:
        (coordinator,) = response.coordinators
        response.node_id = coordinator.node_id
        response.host = coordinator.host
        response.port = coordinator.port
        response.error_code = coordinator.error_code
        response.error_message = coordinator.error_message


def _leave_group_response(response: LeaveGroupResponse) -> None:
    # Old versions have one member and one place for what went wrong with it.
    if response.members and not response.error_code:
        response.error_code = response.members[0].error_code


def _offset_fetch_response(response: OffsetFetchResponse) -> None:
    from millrace.wire.messages.offset_fetch import OffsetFetchResponsePartition, OffsetFetchResponseTopic

    if response.groups:
        (group,) = response.groups
        response.error_code = group.error_code
        response.topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ]


def _add_partitions_to_txn_response(response: AddPartitionsToTxnResponse) -> None:
    if response.results_by_transaction:
        (result,) = response.results_by_transaction
        response.results_by_topic_v3_and_below = result.topic_results


REQUEST_FOLDS: Final[dict[str, Fold]] = {
    "MetadataRequest": Fold(0, _metadata_request),
    "JoinGroupRequest": Fold(0, _join_group_request),
    "FetchRequest": Fold(14, _fetch_request),
    "FindCoordinatorRequest": Fold(3, _find_coordinator_request),
    "LeaveGroupRequest": Fold(2, _leave_group_request),
    "DeleteTopicsRequest": Fold(5, _delete_topics_request),
    "OffsetFetchRequest": Fold(7, _offset_fetch_request),
    "AddPartitionsToTxnRequest": Fold(3, _add_partitions_to_txn_request),
    "UpdateFeaturesRequest": Fold(0, _update_features_request),
}

RESPONSE_FOLDS: Final[dict[str, Fold]] = {
    "FindCoordinatorResponse": Fold(3, _find_coordinator_response),
    "LeaveGroupResponse": Fold(2, _leave_group_response),
    "OffsetFetchResponse": Fold(7, _offset_fetch_response),
    "AddPartitionsToTxnResponse": Fold(3, _add_partitions_to_txn_response),
}
