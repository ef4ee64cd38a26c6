"""What a client is allowed to do, as the bit sets that answers about topics and clusters carry.

Everything is allowed: this broker has no authorizer, and neither has Kafka by default.
"""

from __future__ import annotations

import enum
from typing import Final


class Operation(enum.IntEnum):
    """The numbers are the protocol's."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


TOPIC_OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
GROUP_OPERATIONS: Final = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)

ALL_TOPIC_OPERATIONS: Final = sum(1 << operation for operation in TOPIC_OPERATIONS)
ALL_GROUP_OPERATIONS: Final = sum(1 << operation for operation in GROUP_OPERATIONS)
ALL_CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in CLUSTER_OPERATIONS)
NOT_ASKED: Final = -(2**31)
"""The client did not want to know."""
