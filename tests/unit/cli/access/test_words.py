"""How principals, operations and resources are written."""

from __future__ import annotations

import click
import pytest

from millrace.cli.access.words import (
    operations,
    principal,
    resource,
    shown,
    shown_host,
    shown_resource,
)
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType


def test_a_bare_name_is_a_user() -> None:
    assert principal("alice") == "User:alice"
    assert principal("Role:ops") == "Role:ops"
    assert principal("User:CN=a:b") == "User:CN=a:b"
    with pytest.raises(click.BadParameter):
        principal(" ")


def test_operations_are_words_with_commas() -> None:
    assert operations("read, Describe-Configs,IDEMPOTENT_WRITE") == [
        Operation.READ,
        Operation.DESCRIBE_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ]
    for wrong in ("reed", "any", "unknown", ""):
        with pytest.raises(click.BadParameter, match="there are all, read, write"):
            operations(wrong)


def test_a_resource_has_a_type_and_a_name() -> None:
    assert resource("topic:orders") == (ResourceType.TOPIC, "orders")
    assert resource("transactional-id:a:b") == (ResourceType.TRANSACTIONAL_ID, "a:b")
    assert resource("cluster") == resource("cluster:kafka-cluster") == (ResourceType.CLUSTER, "kafka-cluster")
    for wrong in ("orders", "topic:", "topic", "cluster:other", "any:x"):
        with pytest.raises(click.BadParameter):
            resource(wrong)


def test_words_are_shown_as_they_are_written() -> None:
    anywhere = Acl(
        ResourceType.TRANSACTIONAL_ID,
        "pay",
        PatternType.PREFIXED,
        "User:a",
        "*",
        Operation.TWO_PHASE_COMMIT,
        Permission.ALLOW,
    )
    assert shown(anywhere.operation) == "two-phase-commit"
    assert shown_resource(anywhere) == "transactional-id:pay*"
    assert shown_host(anywhere) == "anywhere"
    cluster = anywhere._replace(resource_type=ResourceType.CLUSTER, host="::1", pattern=PatternType.LITERAL)
    assert (shown_resource(cluster), shown_host(cluster)) == ("cluster", "::1")
