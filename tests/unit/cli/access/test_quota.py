"""`millrace quota`: whom a quota is for, and how much."""

from __future__ import annotations

import pytest

from millrace.security.config_resources import PREFIX, TENANT_TYPE
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster


def test_quotas_are_set_listed_and_removed(cluster: FakeCluster) -> None:
    cluster.done("quota", "set", "--user", "alice", "producer_byte_rate=1000000", "request_percentage=12.5")
    cluster.done("quota", "set", "--user", "alice", "--default-client-id", "consumer_byte_rate=5")
    cluster.done("quota", "set", "--default-ip", "connection_creation_rate=3")
    assert cluster.quotas == {
        (("user", "alice"),): {"producer_byte_rate": 1e6, "request_percentage": 12.5},
        (("user", "alice"), ("client-id", None)): {"consumer_byte_rate": 5.0},
        (("ip", None),): {"connection_creation_rate": 3.0},
    }
    assert [line.rsplit(None, 2) for line in cluster.done("quota", "list").splitlines()[1:]] == [
        ["ip=(default)", "connection_creation_rate", "3"],
        ["user=alice", "producer_byte_rate", "1000000"],
        ["user=alice", "request_percentage", "12.5"],
        ["user=alice client-id=(default)", "consumer_byte_rate", "5"],
    ]
    assert cluster.json("quota", "list", "--default-ip") == [
        {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 3.0}}
    ]
    cluster.done("quota", "remove", "--user", "alice", "request_percentage")
    assert cluster.quotas[(("user", "alice"),)] == {"producer_byte_rate": 1e6}


def test_the_quotas_of_a_tenant_are_its_limits(cluster: FakeCluster) -> None:
    cluster.named[TENANT_TYPE, "acme"] = {PREFIX: "acme."}
    cluster.done("quota", "set", "--tenant", "acme", "producer_byte_rate=100", "request_percentage=0.5")
    assert cluster.named[TENANT_TYPE, "acme"] == {
        PREFIX: "acme.",
        "bytes.in.per.second": "100",
        "request.percentage": "0.5",
    }
    assert (
        cluster.json("quota", "list")
        == cluster.json("quota", "list", "--tenant", "acme")
        == [
            {"entity": {"tenant": "acme"}, "quotas": {"producer_byte_rate": 100.0, "request_percentage": 0.5}}
        ]
    )
    assert cluster.json("quota", "list", "--tenant", "other") == []
    cluster.done("quota", "remove", "--tenant", "acme", "producer_byte_rate")
    assert "bytes.in.per.second" not in cluster.named[TENANT_TYPE, "acme"]
    assert "a tenant has no quota x" in cluster.failed("quota", "set", "--tenant", "acme", "x=1")
    assert "there is no tenant b" in cluster.failed("quota", "set", "--tenant", "b", "producer_byte_rate=1")


@pytest.mark.parametrize(
    "words, said",
    [
        (("set", "producer_byte_rate=1"), "say whose"),
        (("set", "--user", "a", "producer_byte_rate=much"), "is no number"),
        (("set", "--user", "a", "--default-user", "x=1"), "give one of them"),
        (("set", "--user", "a", "--ip", "::1", "x=1"), "go with no other option"),
    ],
)
def test_what_names_nobody_or_nothing_is_refused(
    cluster: FakeCluster, words: tuple[str, ...], said: str
) -> None:
    assert said in cluster.failed("quota", *words)
    assert cluster.quotas == {}


def test_a_refusal_is_told_in_the_brokers_words(cluster: FakeCluster) -> None:
    cluster.refused = ErrorCode.INVALID_REQUEST
    said = cluster.failed("quota", "set", "--user", "a", "x=1")
    assert "user=a: no such key (INVALID_REQUEST)" in said
