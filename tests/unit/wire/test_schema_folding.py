"""Requests of old versions arrive in the newest shape, and answers go back in the old one."""

from __future__ import annotations

from millrace.wire import schema
from millrace.wire.api_keys import API_SCHEMAS, ApiKey
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.wire.messages.fetch import FetchRequest
from millrace.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millrace.wire.messages.join_group import JoinGroupRequest
from millrace.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from millrace.wire.messages.metadata import MetadataRequest
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from millrace.wire.schema_folding import REQUEST_FOLDS, RESPONSE_FOLDS, SAFE_DOWNGRADE


def test_every_rule_is_for_a_message_and_a_version_that_exist() -> None:
    names = {api.name: api for api in API_SCHEMAS.values()}
    for name, fold in (*REQUEST_FOLDS.items(), *RESPONSE_FOLDS.items()):
        api = names[name.removesuffix("Request").removesuffix("Response")]
        assert api.version_min <= fold.last_version < api.version_max, name


def test_an_empty_list_of_topics_means_all_in_version_0_only() -> None:
    assert schema.request_decoder(ApiKey.METADATA, 0)(bytes(4)).topics is None
    assert schema.request_decoder(ApiKey.METADATA, 1)(bytes(4)).topics == []


def test_old_metadata_requests_allow_topics_to_be_created() -> None:
    for version in range(14):
        wire = schema.request_encoder(ApiKey.METADATA, version)(
            MetadataRequest(topics=[], allow_auto_topic_creation=False)
        )
        request = schema.request_decoder(ApiKey.METADATA, version)(wire)
        assert request.allow_auto_topic_creation is (version < 4)


def test_the_first_join_request_has_one_timeout_for_both_purposes() -> None:
    wire = schema.request_encoder(ApiKey.JOIN_GROUP, 0)(JoinGroupRequest(session_timeout_ms=6000))
    assert schema.request_decoder(ApiKey.JOIN_GROUP, 0)(wire).rebalance_timeout_ms == 6000


def test_a_follower_is_known_by_its_replica_state_in_every_version() -> None:
    for version in range(4, 15):
        wire = schema.request_encoder(ApiKey.FETCH, version)(FetchRequest(replica_id=3))
        assert schema.request_decoder(ApiKey.FETCH, version)(wire).replica_state.replica_id == 3


def test_one_coordinator_key_becomes_a_list_of_one() -> None:
    wire = schema.request_encoder(ApiKey.FIND_COORDINATOR, 3)(FindCoordinatorRequest(key="g", key_type=1))
    request = schema.request_decoder(ApiKey.FIND_COORDINATOR, 3)(wire)
    assert request.coordinator_keys == ["g"]
    answer = FindCoordinatorResponse(
        coordinators=[Coordinator(key="g", node_id=1, host="h", port=9, error_code=0, error_message=None)]
    )
    for version in range(4):
        old = schema.response_decoder(ApiKey.FIND_COORDINATOR, version)(
            schema.response_encoder(ApiKey.FIND_COORDINATOR, version)(answer)
        )
        assert (old.node_id, old.host, old.port) == (1, "h", 9)


def test_one_leaving_member_becomes_a_list_of_one() -> None:
    wire = schema.request_encoder(ApiKey.LEAVE_GROUP, 2)(LeaveGroupRequest(group_id="g", member_id="m"))
    assert schema.request_decoder(ApiKey.LEAVE_GROUP, 2)(wire).members == [MemberIdentity(member_id="m")]
    answer = LeaveGroupResponse(members=[MemberResponse(member_id="m", error_code=25)])
    old = schema.response_encoder(ApiKey.LEAVE_GROUP, 2)(answer)
    assert schema.response_decoder(ApiKey.LEAVE_GROUP, 2)(old).error_code == 25


def test_names_of_topics_to_delete_become_states() -> None:
    wire = schema.request_encoder(ApiKey.DELETE_TOPICS, 5)(DeleteTopicsRequest(topic_names=["a", "b"]))
    request = schema.request_decoder(ApiKey.DELETE_TOPICS, 5)(wire)
    assert request.topics == [DeleteTopicState(name="a"), DeleteTopicState(name="b")]


def test_offsets_of_one_group_become_a_list_of_groups() -> None:
    encode, decode = (
        schema.request_encoder(ApiKey.OFFSET_FETCH, 7),
        schema.request_decoder(ApiKey.OFFSET_FETCH, 7),
    )
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    request = decode(encode(OffsetFetchRequest(group_id="g", topics=topics, require_stable=True)))
    expected = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    assert request.groups == [OffsetFetchRequestGroup(group_id="g", topics=expected)]
    assert request.require_stable
    everything = decode(encode(OffsetFetchRequest(group_id="g", topics=None)))
    assert everything.groups == [OffsetFetchRequestGroup(group_id="g", topics=None)]


def test_offsets_of_one_group_are_answered_in_the_old_place() -> None:
    partition = OffsetFetchResponsePartitions(partition_index=1, committed_offset=42, metadata=None)
    topic = OffsetFetchResponseTopics(name="t", partitions=[partition])
    answer = OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic], error_code=16)]
    )
    for version in range(1, 8):
        old = schema.response_decoder(ApiKey.OFFSET_FETCH, version)(
            schema.response_encoder(ApiKey.OFFSET_FETCH, version)(answer)
        )
        assert old.topics[0].partitions[0].committed_offset == 42
        assert old.error_code == (16 if version >= 2 else 0)


def test_partitions_of_one_transaction_become_a_list_of_transactions() -> None:
    old = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=1,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    wire = schema.request_encoder(ApiKey.ADD_PARTITIONS_TO_TXN, 3)(old)
    assert schema.request_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, 3)(wire).transactions == [
        AddPartitionsToTxnTransaction(
            transactional_id="tx",
            producer_id=7,
            producer_epoch=1,
            topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
    ]
    result = AddPartitionsToTxnResult(topic_results=[AddPartitionsToTxnTopicResult(name="t")])
    answer = schema.response_encoder(ApiKey.ADD_PARTITIONS_TO_TXN, 3)(
        AddPartitionsToTxnResponse(results_by_transaction=[result])
    )
    decoded = schema.response_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, 3)(answer)
    assert decoded.results_by_topic_v3_and_below == [AddPartitionsToTxnTopicResult(name="t")]


def test_permission_to_downgrade_becomes_a_kind_of_upgrade() -> None:
    updates = [FeatureUpdateKey(feature="f", allow_downgrade=True), FeatureUpdateKey(feature="g")]
    wire = schema.request_encoder(ApiKey.UPDATE_FEATURES, 0)(UpdateFeaturesRequest(feature_updates=updates))
    decoded = schema.request_decoder(ApiKey.UPDATE_FEATURES, 0)(wire)
    assert [update.upgrade_type for update in decoded.feature_updates] == [SAFE_DOWNGRADE, 1]
