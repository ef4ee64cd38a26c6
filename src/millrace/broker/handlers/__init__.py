"""The one list of the APIs that this broker serves; dispatch, ApiVersions and the docs follow from it."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.administrative.told import told
from millrace.broker.handlers.cluster.api_versions import API_VERSIONS
from millrace.broker.handlers.cluster.cluster import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
)
from millrace.broker.handlers.cluster.log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
)
from millrace.broker.handlers.cluster.logins import SASL_AUTHENTICATE, SASL_HANDSHAKE
from millrace.broker.handlers.cluster.metadata import DESCRIBE_CLUSTER, METADATA
from millrace.broker.handlers.cluster.quorum import DESCRIBE_QUORUM
from millrace.broker.handlers.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from millrace.broker.handlers.fetch import FETCH
from millrace.broker.handlers.groups import GROUP_APIS
from millrace.broker.handlers.produce.produce import PRODUCE
from millrace.broker.handlers.queues import QUEUE_APIS
from millrace.broker.handlers.queues.share_state import SHARE_STATE_APIS
from millrace.broker.handlers.security import SECURITY_APIS
from millrace.broker.handlers.topics.delete_records import DELETE_RECORDS
from millrace.broker.handlers.topics.list_offsets import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from millrace.broker.handlers.topics.partitions import DESCRIBE_TOPIC_PARTITIONS
from millrace.broker.handlers.topics.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from millrace.broker.handlers.transactions.init_producer_id import INIT_PRODUCER_ID
from millrace.broker.handlers.transactions.transactional_offsets import TXN_OFFSET_COMMIT
from millrace.broker.handlers.transactions.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from millrace.broker.network.dispatch import Api

__all__: Final = ["APIS"]

_SERVED: Final[tuple[Api, ...]] = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    *GROUP_APIS,
    SASL_HANDSHAKE,
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DELETE_RECORDS,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    WRITE_TXN_MARKERS,
    TXN_OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    SASL_AUTHENTICATE,
    CREATE_PARTITIONS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
    DESCRIBE_QUORUM,
    DESCRIBE_CLUSTER,
    DESCRIBE_PRODUCERS,
    UNREGISTER_BROKER,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    LIST_CONFIG_RESOURCES,
    DESCRIBE_TOPIC_PARTITIONS,
    *QUEUE_APIS,
    *SHARE_STATE_APIS,
    *SECURITY_APIS,
)

APIS: Final = tuple(told(api) for api in _SERVED)
"""All of them; the audit is told of those that are administrative."""
