"""Lag in seconds and the members' health: where they are asked for, and what is made of no answer."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from typing import Any

import orjson
import pytest

from millrace.cli import clients, settings
from millrace.cli.group.health import discovered_url, with_health
from millrace.cli.group.state import GroupState, MemberState, PartitionState
from millrace.cli.settings import Setting
from tests.unit.cli.fakes import ADDRESS

STATE = GroupState(
    group="my/group",
    state="Stable",
    type="consumer",
    assignor="uniform",
    coordinator_id=2,
    coordinator="h2:9092 (id 2)",
    coordinator_host="h2",
    members=(
        MemberState(member="m1", client="c", host="h", instance=None, partitions=(("t", 0),)),
        MemberState(member="m2", client="c", host="h", instance=None, partitions=()),
    ),
    partitions=(
        PartitionState(topic="t", partition=0, committed=1, end=5),
        PartitionState(topic="t", partition=1, committed=1, end=5),
    ),
)


@pytest.mark.parametrize(
    "listener, url",
    [
        ("127.0.0.1:9644", "http://127.0.0.1:9644"),
        # Everywhere: then where its clients reach it, too.
        ("0.0.0.0:9644", "http://h2:9644"),
        ("[::]:9644", "http://h2:9644"),
        (":9644", "http://h2:9644"),
        # Any free port is none that could be asked.
        ("127.0.0.1:0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_port_is_the_one_that_the_coordinator_names(
    listener: str | None, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_admin: object, _address: object, resource: Any) -> list[Setting]:
        assert resource.name == "2"
        return [
            Setting(
                name="metrics.listener", value=listener, source="DEFAULT", read_only=True, sensitive=False
            )
        ]

    monkeypatch.setattr(settings, "describe", describe)
    nobody: Any = None
    assert discovered_url(nobody, ADDRESS, STATE) == url


def test_a_port_with_a_certificate_is_asked_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(*_: object) -> list[Setting]:
        values = {"metrics.listener": "h:9644", "metrics.ssl.keystore.location": "/etc/store.pem"}
        return [
            Setting(name=name, value=value, source="DEFAULT", read_only=True, sensitive=False)
            for name, value in values.items()
        ]

    monkeypatch.setattr(settings, "describe", describe)
    nobody: Any = None
    assert discovered_url(nobody, ADDRESS, STATE) == "https://h:9644"


def test_a_broker_that_does_not_tell_its_settings_has_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Setting]:
        raise clients.RequestFailed("not allowed")

    monkeypatch.setattr(settings, "describe", refuse)
    nobody: Any = None
    assert discovered_url(nobody, ADDRESS, STATE) is None


def test_what_the_port_tells_is_added_to_partitions_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    document = {
        "partitions": [{"topic": "t", "partition": 0, "lag_ms": 1_500}],
        "members": [{"member_id": "m1", "last_heartbeat_ms": 7, "last_fetch_ms": None}],
    }

    def urlopen(request: urllib.request.Request, timeout: float, context: object) -> io.BytesIO:
        asked.append((request.full_url, request.get_header("Authorization")))
        return io.BytesIO(orjson.dumps(document))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("MILLRACE_METRICS_TOKEN", raising=False)
    state = with_health(STATE, "http://h2:9644/")
    assert asked == [("http://h2:9644/v1/groups/my%2Fgroup", None)]
    monkeypatch.setenv("MILLRACE_METRICS_TOKEN", "geheim")
    with_health(STATE, "https://h2:9644")
    assert asked[1:] == [("https://h2:9644/v1/groups/my%2Fgroup", "Bearer geheim")]
    assert [each.lag_ms for each in state.partitions] == [1_500, None]
    assert [(each.heartbeat_ms, each.fetch_ms, each.commit_ms) for each in state.members] == [
        (7, None, None),
        (None, None, None),
    ]


@pytest.mark.parametrize("answer", [urllib.error.URLError("refused"), TimeoutError(), b"no json"])
def test_without_an_answer_all_else_is_shown(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(_request: object, timeout: float, context: object) -> io.BytesIO:
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return io.BytesIO(answer)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert with_health(STATE, "http://h2:9644") == STATE
    assert with_health(STATE, None) == STATE
