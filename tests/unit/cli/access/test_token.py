"""`millrace token`: the secret stays in a file."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from millrace.client.properties import translated
from millrace.core.properties import parse_properties
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster

SECRET = base64.b64encode(b"\1geheim\2").decode()


def test_a_token_is_written_into_a_file_for_its_owner_alone(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "token.properties"
    said = cluster.run(
        "token", "create", str(file), "--owner", "alice", "--renewer", "bob", "--max-lifetime", "2h"
    ).output
    assert SECRET not in said
    assert "created token t-1 of User:alice" in said
    assert "it expires at 2027-01-15T08:00:00Z" in said
    assert file.stat().st_mode & 0o777 == 0o600
    ((_, request),) = cluster.broker.asked
    assert (request.owner_principal_name, request.max_lifetime_ms) == ("alice", 7_200_000)
    assert [each.principal_name for each in request.renewers] == ["bob"]
    login = translated(parse_properties(file.read_text())).values
    assert (login["sasl.username"], login["sasl.password"]) == ("t-1", SECRET)
    assert login["sasl.delegation.token"] == "true"


def test_a_file_that_is_there_is_not_overwritten(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "token.properties"
    file.write_text("mine")
    assert "is there already" in cluster.failed("token", "create", str(file))
    assert file.read_text() == "mine"
    # And no token is made that nobody would ever have.
    assert cluster.broker.asked == []


def test_a_token_is_renewed_and_ended_by_its_file(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "token.properties"
    cluster.json("token", "create", str(file))
    for words in (("renew", "--for", "1h"), ("renew",), ("expire", "--in", "30m"), ("expire",)):
        said = cluster.done("token", words[0], str(file), *words[1:])
        assert said == f"the token in {file} expires at 2027-01-15T08:00:00Z\n"
    sent = {(key, getattr(each, "renew_period_ms", getattr(each, "expiry_time_period_ms", None)))
            for key, each in cluster.broker.asked[1:]}  # fmt: skip
    assert sent == {
        (ApiKey.RENEW_DELEGATION_TOKEN, 3_600_000),
        (ApiKey.RENEW_DELEGATION_TOKEN, -1),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, 1_800_000),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, -1),
    }
    assert "is no time such as" in cluster.failed("token", "renew", str(file), "--for", "soon")


def test_tokens_are_listed_without_their_secrets(cluster: FakeCluster) -> None:
    shown = cluster.done("token", "list", "--owner", "alice")
    assert SECRET not in shown
    assert shown.splitlines()[1].split()[:3] == ["t-1", "User:alice", "User:bob"]
    (document,) = cluster.json("token", "list")
    assert (document["owner"], document["issued"]) == ("User:me", "2027-01-15T07:59:59Z")


@pytest.mark.parametrize(
    "content", ["", "a=b", "sasl.jaas.config=x", "sasl.jaas.config=m required password=%;"]
)
def test_another_file_is_told(cluster: FakeCluster, tmp_path: Path, content: str) -> None:
    file = tmp_path / "other"
    file.write_text(content)
    assert "is no file of `millrace token create`" in cluster.failed("token", "renew", str(file))


def test_a_refusal_leaves_no_file(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.refused = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert "DELEGATION_TOKEN_AUTH_DISABLED" in cluster.failed("token", "create", str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()
