"""Permissions over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.access import permissions
from millrace.cli.clients import RequestFailed
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.acls.filters import EVERYTHING
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster


def test_what_is_set_is_read_back_and_removed(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    cluster.allow("User:b", Operation.READ, ResourceType.USER, "x")
    cluster.allow("User:a", Operation.READ, ResourceType.TOPIC, "t")
    wanted = list(cluster.acls)
    cluster.acls.clear()
    assert permissions.create(broker, wanted) == [None, None]
    assert permissions.read(broker, EVERYTHING) == sorted(wanted)
    assert permissions.delete(broker, wanted[:1]) == wanted[:1]
    assert permissions.read(broker, EVERYTHING) == wanted[1:]


def test_numbers_of_a_newer_broker_are_unknown(cluster: FakeCluster) -> None:
    found = permissions._acl(99, "n", 98, _Entry())
    assert (found.resource_type, found.pattern, found.operation) == (0, 0, 0)


class _Entry:
    principal, host, operation, permission_type = "User:a", "*", 97, 3


def test_a_broker_without_an_authorizer_says_so(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    cluster.refused = ErrorCode.SECURITY_DISABLED
    with pytest.raises(RequestFailed, match=r"^permissions: .*\(SECURITY_DISABLED\)$"):
        permissions.read(broker, EVERYTHING)
    assert permissions.refusal(0, None) is None
