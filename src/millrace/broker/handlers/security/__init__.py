"""Permissions, users, quotas and delegation tokens, as Kafka's tools administer them."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.security.acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from millrace.broker.handlers.security.quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from millrace.broker.handlers.security.scram import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from millrace.broker.handlers.security.tokens import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from millrace.broker.network.dispatch import Api

__all__: Final = ["SECURITY_APIS"]

SECURITY_APIS: Final[tuple[Api, ...]] = (
    DESCRIBE_ACLS,
    CREATE_ACLS,
    DELETE_ACLS,
    CREATE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ALTER_USER_SCRAM_CREDENTIALS,
)
