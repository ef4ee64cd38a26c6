"""For each administrative API: a refusal that its clients of every version can read, and results that name
what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.handlers.administrative.shapes import ADMINISTRATIVE
from millrace.security.config_resources import ROLE_TYPE
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    elect_leaders,
    expire_delegation_token,
    incremental_alter_configs,
    offset_delete,
    renew_delegation_token,
    unregister_broker,
)

SECRET = b"secret-bytes"

REQUESTS: dict[ApiKey, tuple[Any, list[str]]] = {
    ApiKey.CREATE_TOPICS: (
        create_topics.CreateTopicsRequest(topics=[create_topics.CreatableTopic(name="orders")]),
        ["Topic:orders"],
    ),
    ApiKey.DELETE_TOPICS: (
        delete_topics.DeleteTopicsRequest(
            topic_names=["orders"], topics=[delete_topics.DeleteTopicState(name="orders")]
        ),
        ["Topic:orders"],
    ),
    ApiKey.CREATE_PARTITIONS: (
        create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name="orders", count=3)]
        ),
        ["Topic:orders"],
    ),
    ApiKey.DELETE_RECORDS: (
        delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name="orders",
                    partitions=[delete_records.DeleteRecordsPartition(partition_index=2, offset=9)],
                )
            ]
        ),
        ["Partition:orders-2"],
    ),
    ApiKey.ALTER_CONFIGS: (
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=4,
                    resource_name="1",
                    configs=[alter_configs.AlterableConfig(name="x", value=SECRET.decode())],
                )
            ]
        ),
        ["Broker:1"],
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=ROLE_TYPE,
                    resource_name="ops",
                    configs=[incremental_alter_configs.AlterableConfig(name="x", value=SECRET.decode())],
                )
            ]
        ),
        ["Role:ops"],
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path="/x",
                    topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name="orders", partitions=[0, 1])],
                )
            ]
        ),
        ["Partition:orders-0", "Partition:orders-1"],
    ),
    ApiKey.ELECT_LEADERS: (
        elect_leaders.ElectLeadersRequest(
            topic_partitions=[elect_leaders.TopicPartitions(topic="orders", partitions=[1])]
        ),
        ["Partition:orders-1"],
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        alter_partition_reassignments.AlterPartitionReassignmentsRequest(),
        ["Cluster:kafka-cluster"],
    ),
    ApiKey.UNREGISTER_BROKER: (unregister_broker.UnregisterBrokerRequest(broker_id=4), ["Broker:4"]),
    ApiKey.DELETE_GROUPS: (delete_groups.DeleteGroupsRequest(groups_names=["g"]), ["Group:g"]),
    ApiKey.OFFSET_DELETE: (offset_delete.OffsetDeleteRequest(group_id="g"), ["Group:g"]),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        alter_share_group_offsets.AlterShareGroupOffsetsRequest(group_id="g"),
        ["Group:g"],
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        delete_share_group_offsets.DeleteShareGroupOffsetsRequest(group_id="g"),
        ["Group:g"],
    ),
    ApiKey.CREATE_ACLS: (
        create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=2,
                    resource_name="orders",
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        ["Acl:User:a ALLOW READ on Topic:LITERAL:orders from *"],
    ),
    ApiKey.DELETE_ACLS: (
        delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter(resource_type_filter=2)]),
        ["AclFilter:0"],
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            upsertions=[
                alter_user_scram_credentials.ScramCredentialUpsertion(
                    name="alice", mechanism=1, iterations=4096, salt=SECRET, salted_password=SECRET
                )
            ]
        ),
        ["User:alice"],
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.AlterClientQuotasRequestEntryData(
                    entity=[
                        alter_client_quotas.AlterClientQuotasRequestEntityData(
                            entity_type="user", entity_name=None
                        )
                    ],
                    ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1024.0)],
                )
            ]
        ),
        ["Quota:user=<default>"],
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        create_delegation_token.CreateDelegationTokenRequest(),
        ["DelegationToken:"],
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (
        renew_delegation_token.RenewDelegationTokenRequest(hmac=SECRET),
        ["DelegationToken:"],
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (
        expire_delegation_token.ExpireDelegationTokenRequest(hmac=SECRET),
        ["DelegationToken:"],
    ),
}


def test_every_shape_is_tried() -> None:
    assert set(REQUESTS) == set(ADMINISTRATIVE)


@pytest.mark.parametrize("key", list(ADMINISTRATIVE), ids=lambda key: key.name)
def test_a_refusal_can_be_read_and_told_and_holds_no_secret(key: ApiKey) -> None:
    request, names = REQUESTS[key]
    api = next(api for api in APIS if api.key is key)
    for version in range(api.versions[0], api.versions[1] + 1):
        asked = schema.request_decoder(key, version)(schema.request_encoder(key, version)(request))
        answer = ADMINISTRATIVE[key].refused(asked, ErrorCode.BROKER_NOT_AVAILABLE, "closed")
        read = schema.response_decoder(key, version)(schema.response_encoder(key, version)(answer))
        results = list(ADMINISTRATIVE[key].results(asked, read))
        assert [f"{result.resource_type}:{result.resource}" for result in results] == names
        assert {result.error for result in results} == {"BROKER_NOT_AVAILABLE"}
        assert SECRET.decode() not in str(results)


def test_deleted_permissions_are_told_one_by_one() -> None:
    matching = delete_acls.DeleteAclsMatchingAcl(
        resource_type=2, resource_name="o", pattern_type=4, principal="User:a", host="*", operation=4
    )
    response = delete_acls.DeleteAclsResponse(
        filter_results=[delete_acls.DeleteAclsFilterResult(matching_acls=[matching, matching])]
    )
    results = list(ADMINISTRATIVE[ApiKey.DELETE_ACLS].results(delete_acls.DeleteAclsRequest(), response))
    assert [result.resource for result in results] == ["User:a UNKNOWN WRITE on Topic:PREFIXED:o from *"] * 2


def test_a_code_that_nobody_knows_is_a_number() -> None:
    response = unregister_broker.UnregisterBrokerResponse(error_code=9_999)
    shape = ADMINISTRATIVE[ApiKey.UNREGISTER_BROKER]
    (result,) = shape.results(unregister_broker.UnregisterBrokerRequest(broker_id=4), response)
    assert result.error == "9999"
