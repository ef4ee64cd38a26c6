"""The client asks the right broker, tries again what may pass, and says what does not."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.broker_client import EARLIEST, LATEST, TRANSACTION, BrokerClient
from millrace.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    UnsupportedBroker,
)
from millrace.client.security import SecurityOptions
from millrace.core.ids import TopicId, TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from millrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millrace.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.unit.client.scripted_brokers import BOOTSTRAP, TOPIC_ID, ScriptedBrokers, in_turn

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOT_LEADER, COORDINATOR_NOT_AVAILABLE, NOT_AUTHORIZED = 6, 15, 30


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> ScriptedBrokers:
    found = ScriptedBrokers()
    found.install(monkeypatch)
    return found


def client(bootstrap: str = BOOTSTRAP) -> BrokerClient:
    return BrokerClient(bootstrap, timeout_ms=1000)


def coordinator(node_id: int = 2, error_code: int = 0) -> FindCoordinatorResponse:
    found = Coordinator(key="g", node_id=node_id, host="two", port=2, error_code=error_code)
    return FindCoordinatorResponse(coordinators=[found])


def listed(request: Any, node: int, error_code: int = 0) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=error_code,
                        timestamp=each.timestamp,
                        offset=100 * node,
                        leader_epoch=5,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_topics_that_do_not_exist_are_left_out_of_metadata(brokers: ScriptedBrokers) -> None:
    found = client().metadata(["orders", "nothing"])
    assert list(found) == ["orders"]
    assert found["orders"].topic_id == TOPIC_ID
    assert {number: each.leader for number, each in found["orders"].partitions.items()} == {0: 1, 1: 2}


def test_each_leader_is_asked_for_its_own_partitions(brokers: ScriptedBrokers) -> None:
    brokers.answers[ApiKey.LIST_OFFSETS] = listed
    found = client().list_offsets({P0: EARLIEST, P1: LATEST})
    assert {partition: each.offset for partition, each in found.items()} == {P0: 100, P1: 200}
    assert [node for node, _, _ in brokers.asked] == [1, 2]
    assert [each.timestamp for each in found.values()] == [EARLIEST, LATEST]


def test_a_leader_that_moved_is_asked_for_anew(brokers: ScriptedBrokers) -> None:
    def moving(request: Any, node: int) -> Any:
        if node == 1:
            brokers.leaders[0] = 2
            return listed(request, node, NOT_LEADER)
        return listed(request, node)

    brokers.answers[ApiKey.LIST_OFFSETS] = moving
    assert client().list_offsets({P0: LATEST})[P0].offset == 200
    assert [node for node, _, _ in brokers.asked] == [1, 2]
    assert brokers.slept == [0.05]


def test_an_error_that_does_not_pass_is_told_at_once(brokers: ScriptedBrokers) -> None:
    brokers.answers[ApiKey.LIST_OFFSETS] = lambda request, node: listed(request, node, NOT_AUTHORIZED)
    with pytest.raises(BrokerRefused, match="offsets of orders-0") as refused:
        client().list_offsets({P0: LATEST})
    assert refused.value.code == NOT_AUTHORIZED
    assert brokers.slept == []


def test_trying_again_ends_with_the_timeout_and_waits_longer_each_time(brokers: ScriptedBrokers) -> None:
    brokers.leaders[0] = -1
    with pytest.raises(BrokerRefused, match="orders-0"):
        client().list_offsets({P0: LATEST})
    assert brokers.slept == [0.05, 0.1, 0.2, 0.4]
    assert sum(brokers.slept) < 1


def test_the_next_server_is_asked_where_the_first_does_not_answer(brokers: ScriptedBrokers) -> None:
    brokers.refusing = {("one", 1)}
    assert client("one:1,two:2").metadata(["orders"])
    brokers.refusing.add(("two", 2))
    with pytest.raises(ConnectionFailed, match="no broker answers at one:1; no broker answers at two:2"):
        client("one:1,two:2").metadata(["orders"])


def test_a_lost_connection_is_closed_and_made_anew(brokers: ScriptedBrokers) -> None:
    brokers.answers[ApiKey.FIND_COORDINATOR] = in_turn(ConnectionFailed("lost"), coordinator())
    assert client().coordinator("g", TRANSACTION) == 2
    assert brokers.opened == [("one", 1)] * 2
    assert brokers.closed == [("one", 1)]
    assert brokers.requests(ApiKey.FIND_COORDINATOR)[0].key_type == TRANSACTION


def test_a_broker_without_a_version_that_we_know_is_refused(brokers: ScriptedBrokers) -> None:
    brokers.versions = {ApiKey.METADATA: (0, 9), ApiKey.FETCH: (4, 15)}
    found = client()
    with pytest.raises(UnsupportedBroker, match="version of 10 to 12; one:1 serves versions 0 to 9"):
        found.metadata()
    assert found.version(ApiKey.FETCH, 13, 17) == 15
    assert found.version(ApiKey.LIST_OFFSETS, 4, 8) == 8


def test_a_broker_that_left_the_cluster_is_not_asked(brokers: ScriptedBrokers) -> None:
    with pytest.raises(ConnectionFailed, match="broker 9 is not in the cluster"):
        client().version(ApiKey.FETCH, 13, 17, node_id=9)


def offsets_of_group(*found: tuple[int, int, int]) -> OffsetFetchResponse:
    partitions = [
        OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=offset, error_code=code, metadata=""
        )
        for number, offset, code in found
    ]
    topics = [OffsetFetchResponseTopics(name="orders", partitions=partitions)]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])


def test_committed_offsets_come_from_the_coordinator_without_those_that_are_none(
    brokers: ScriptedBrokers,
) -> None:
    brokers.answers[ApiKey.FIND_COORDINATOR] = in_turn(
        coordinator(error_code=COORDINATOR_NOT_AVAILABLE), coordinator()
    )
    brokers.answers[ApiKey.OFFSET_FETCH] = in_turn(offsets_of_group((0, 42, 0), (1, -1, 0)))
    assert client().committed("g", [P0, P1]) == {P0: 42}
    assert [node for node, key, _ in brokers.asked if key == ApiKey.OFFSET_FETCH] == [2]
    (request,) = brokers.requests(ApiKey.OFFSET_FETCH)
    # A transaction that is undecided may hold a newer offset.
    assert request.require_stable


def test_offsets_are_committed_for_a_group_without_members(brokers: ScriptedBrokers) -> None:
    done = OffsetCommitResponsePartition(partition_index=0, error_code=0)
    failed = OffsetCommitResponsePartition(partition_index=0, error_code=25)
    brokers.answers[ApiKey.FIND_COORDINATOR] = in_turn(coordinator())
    brokers.answers[ApiKey.OFFSET_COMMIT] = in_turn(
        *(
            OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="orders", partitions=[each])])
            for each in (done, failed)
        )
    )
    found = client()
    found.commit("g", {P0: 7}, "note")
    (request,) = brokers.requests(ApiKey.OFFSET_COMMIT)
    committed = request.topics[0].partitions[0]
    assert (request.group_id, committed.committed_offset, committed.committed_metadata) == ("g", 7, "note")
    with pytest.raises(BrokerRefused, match="commit of group g for orders-0"):
        found.commit("g", {P0: 8})


def test_records_are_fetched_from_the_leader(brokers: ScriptedBrokers) -> None:
    data = PartitionData(partition_index=1, error_code=0, high_watermark=9, records=b"batch")
    brokers.answers[ApiKey.FETCH] = in_turn(
        FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])
    )
    found = client().fetch_raw(TopicId(TOPIC_ID), P1, 5, max_bytes=1000)
    assert (bytes(found.records), found.high_watermark) == (b"batch", 9)
    ((node, _, request),) = brokers.asked
    asked = request.topics[0].partitions[0]
    assert (node, asked.partition, asked.fetch_offset, asked.partition_max_bytes) == (2, 1, 5, 1000)


def test_a_connection_that_was_handed_over_is_not_closed_by_the_client(brokers: ScriptedBrokers) -> None:
    with client() as found:
        connection, version = found.connect_to_leader(P1)
        assert (connection.address, version) == ("two:2", 17)
    assert brokers.closed == [("one", 1)]


SASL = SecurityOptions(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="geheim")


def test_a_login_comes_before_any_other_question(brokers: ScriptedBrokers) -> None:
    brokers.answers[ApiKey.SASL_HANDSHAKE] = in_turn(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    brokers.answers[ApiKey.SASL_AUTHENTICATE] = in_turn(SaslAuthenticateResponse())
    BrokerClient(BOOTSTRAP, security=SASL).metadata()
    assert [key for _, key, _ in brokers.asked] == [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert brokers.requests(ApiKey.SASL_AUTHENTICATE)[0].auth_bytes == b"\0u\0geheim"


@pytest.mark.parametrize("handshake, login, words", [
    (33, 0, "one:1 does not offer PLAIN; it offers: SCRAM-SHA-256"),
    (0, 58, "login at one:1: the user or the password is wrong"),
])  # fmt: skip
def test_a_login_that_fails_is_told_and_not_tried_again(
    handshake: int, login: int, words: str, brokers: ScriptedBrokers
) -> None:
    brokers.answers[ApiKey.SASL_HANDSHAKE] = in_turn(
        SaslHandshakeResponse(error_code=handshake, mechanisms=["SCRAM-SHA-256"])
    )
    brokers.answers[ApiKey.SASL_AUTHENTICATE] = in_turn(SaslAuthenticateResponse(error_code=login))
    with pytest.raises(ClientError, match=words) as refused:
        BrokerClient(BOOTSTRAP, security=SASL).metadata()
    assert "geheim" not in str(refused.value)
    assert (brokers.slept, brokers.closed) == ([], [("one", 1)])


def test_a_broker_that_closes_at_once_is_told_with_what_may_be_wrong(brokers: ScriptedBrokers) -> None:
    """The usual sign of a listener that wants TLS or a login."""
    brokers.closing.add(("one", 1))
    words = r"one:1 closed the connection; if its listener uses TLS or SASL, set security\.protocol"
    with pytest.raises(ConnectionFailed, match=words):
        client().request(ApiKey.METADATA, 12, None)
    assert brokers.closed == [("one", 1)]


def test_the_hint_is_left_out_once_a_broker_has_answered(brokers: ScriptedBrokers) -> None:
    brokers.answers[ApiKey.FIND_COORDINATOR] = in_turn(ConnectionClosed("one:1"))
    with pytest.raises(ConnectionClosed, match=r"^one:1 closed the connection$"):
        client().coordinator("g")
