"""ApiVersions: a client learns exactly what is served, and a nameless one is told off."""

from __future__ import annotations

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.network.dispatch import Dispatcher
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.api_versions import ApiVersionsRequest
from tests.unit.broker.handlers.broker import Broker

KAFKA_4_3 = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, 0),
    ApiKey.READ_SHARE_GROUP_STATE: (0, 0),
    ApiKey.WRITE_SHARE_GROUP_STATE: (0, 1),
    ApiKey.DELETE_SHARE_GROUP_STATE: (0, 0),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, 1),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (0, 0),
    ApiKey.STREAMS_GROUP_DESCRIBE: (0, 0),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
}


def named(name: str = "millrace-test", software_version: str = "1.0") -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=name, client_software_version=software_version)


@pytest.mark.parametrize("version", range(5))
def test_the_advertised_versions_are_those_of_kafka_4_3(broker: Broker, version: int) -> None:
    response = broker.ask(named(), version)
    assert response.error_code == ErrorCode.NONE
    assert {api.api_key: (api.min_version, api.max_version) for api in response.api_keys} == KAFKA_4_3


def test_only_features_that_are_there_are_named(broker: Broker) -> None:
    response = broker.ask(named(), 4)
    names = {"metadata.version", "group.version", "transaction.version", "share.version", "streams.version"}
    assert {feature.name for feature in response.supported_features} == names
    assert {feature.name for feature in response.finalized_features} == names
    assert response.finalized_features_epoch >= 0


def test_groups_are_promised_because_their_apis_are_served(broker: Broker) -> None:
    response = broker.ask(named(), 4)
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert (levels["share.version"], levels["streams.version"]) == (1, 1)
    served = {api.api_key for api in response.api_keys}
    assert {ApiKey.SHARE_FETCH, ApiKey.STREAMS_GROUP_HEARTBEAT} <= served


def test_a_feature_from_0_on_is_not_named_where_clients_cannot_read_it(broker: Broker) -> None:
    response = broker.ask(named(), 3)
    assert [feature.name for feature in response.supported_features] == ["metadata.version"]


@pytest.mark.parametrize("name", ["", "bad name!", "-dash", "dash-", "naïve"])
def test_a_client_must_name_its_software_properly(broker: Broker, name: str) -> None:
    response = broker.ask(named(name), 3)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert broker.ask(named("ok", name), 4).error_code == ErrorCode.INVALID_REQUEST


def test_older_clients_need_no_name(broker: Broker) -> None:
    assert broker.ask(ApiVersionsRequest(), 2).error_code == ErrorCode.NONE


def test_the_answer_to_unknown_versions_fits_version_0() -> None:
    dispatcher = Dispatcher(APIS)
    body = dispatcher.answer_unserved(ApiKey.API_VERSIONS)
    assert body is not None
    read = schema.response_decoder(ApiKey.API_VERSIONS, 0)(body)
    assert read.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert len(read.api_keys) == len(APIS)
    assert dispatcher.answers_any_version(ApiKey.API_VERSIONS)


def test_other_apis_have_no_answer_to_versions_that_are_not_served() -> None:
    dispatcher = Dispatcher(APIS)
    for key in (ApiKey.PRODUCE, ApiKey.METADATA, 9_999):
        assert dispatcher.answer_unserved(key) is None
        assert not dispatcher.answers_any_version(key)


def test_every_served_version_has_codecs() -> None:
    for api in APIS:
        if not api.direct:
            for version in range(api.versions[0], api.versions[1] + 1):
                schema.request_decoder(api.key, version)
                schema.response_encoder(api.key, version)
