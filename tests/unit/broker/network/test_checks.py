"""What APIs declare of the permissions that they need."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers import APIS
from millrace.broker.network.checks import NONE, on_cluster, on_transactional_id
from millrace.security.acls.authorizer import SUPPORTED_OPERATIONS
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey

FOR_EVERYBODY: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    # Who may have a token is decided by who owns it.
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
"""The only APIs that may ask for nothing."""


def test_no_api_is_open_to_everybody_by_oversight() -> None:
    assert {api.key for api in APIS if api.checks == NONE} <= FOR_EVERYBODY


def test_every_check_is_for_an_operation_that_its_resource_knows() -> None:
    # CreateTokens and DescribeTokens of a user, and Delete of the cluster (DeleteTopics), are checked by
    # Kafka too, although it tells nobody of the last one.
    told = {
        (kind, operation) for kind, operations in SUPPORTED_OPERATIONS.items() for operation in operations
    }
    for api in APIS:
        for check in api.checks:
            is_known = (check.resource, check.operation) in told
            assert is_known or check[:2] == on_cluster(Operation.DELETE)[:2], (api.key, check)


def test_a_check_is_written_as_the_docs_show_it() -> None:
    assert str(on_cluster(Operation.CLUSTER_ACTION)) == "ClusterAction cluster"
    assert str(on_transactional_id(Operation.WRITE, "if so")) == "Write transactional id (if so)"
