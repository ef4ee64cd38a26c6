"""The audit is built as the settings ask for it, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.assembly.auditing import build_auditing
from millrace.broker.assembly.logins import build_logins
from millrace.broker.auditing.auditing import Auditing
from millrace.metadata.config_definitions.broker_security import STANDARD_AUTHORIZER
from millrace.metadata.errors import InvalidConfig
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import DEFAULT_KINDS, Actor, Kind, Login
from millrace.security.principals import Identity, user
from tests.unit.broker.assembly.grounds import ground_of
from tests.unit.broker.assembly.test_serving import services_of

SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:root",
    "audit.enable": "true",
    "audit.failure": "closed",
    "audit.queue.max.events": "1",
}


def test_logins_are_told_and_refused_while_nothing_can_be_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        ground = ground_of(tmp_path, SASL)
        services = services_of(ground)
        logins = build_logins(ground, services)
        auditing = build_auditing(ground, services, logins)
        assert auditing is not None
        (outbox,) = auditing.auditor.outboxes
        listener = logins.by_listener["SASL_PLAINTEXT"]
        assert listener.told is not None
        assert listener.refuses is not None
        bob, root = Identity(principal=user("bob"), mechanism="PLAIN"), Identity(principal=user("root"))
        endpoint = SimpleNamespace(peer_host="10.0.0.1")
        session = SimpleNamespace(claimed="eve")
        connection: Any = SimpleNamespace(endpoint=endpoint, login=SimpleNamespace(session=session))
        assert listener.refuses(bob) is None
        listener.told(connection, "PLAIN", None, "wrong user name or password")
        (event,) = outbox.first(9)
        assert event.what == Login(
            Actor("User:eve", "10.0.0.1"),
            "PLAIN",
            "SASL_PLAINTEXT",
            False,
            False,
            "wrong user name or password",
        )
        # There is room for one event only, and nobody takes it.
        assert "audit.failure is closed" in (listener.refuses(bob) or "")
        assert listener.refuses(root) is None, "or nobody could mend it"
        assert auditing.auditor.refused == 1
        outbox.took(1, asyncio.get_running_loop().time())
        assert listener.refuses(bob) is None
        listener.told(connection, "PLAIN", bob, "")
        (event,) = outbox.first(9)
        assert isinstance(event.what, Login)
        assert event.what.is_success

    asyncio.run(scenario())


def built(directory: Path, settings: dict[str, str]) -> Auditing | None:
    async def build() -> Auditing | None:
        ground = ground_of(directory, settings)
        services = services_of(ground)
        auditing = build_auditing(ground, services, build_logins(ground, services))
        assert services.access.auditor is (None if auditing is None else auditing.auditor)
        return auditing

    return asyncio.run(build())


def test_nobody_is_told_of_by_default(tmp_path: Path) -> None:
    assert built(tmp_path, {}) is None


def test_places_and_policy_are_those_of_the_settings(tmp_path: Path) -> None:
    auditing = built(
        tmp_path,
        {
            "audit.enable": "true",
            "audit.log.file": str(tmp_path / "audit.log"),
            "audit.failure": "closed",
            "audit.event.types": "login,denied",
            "audit.excluded.principals": "User:CN=a,OU=b; User:c",
            "audit.excluded.topics": "noise,more",
        },
    )
    assert auditing is not None
    assert [outbox.name for outbox in auditing.auditor.outboxes] == ["file", "topic"]
    assert auditing.auditor.policy == AuditPolicy(
        kinds=frozenset([Kind.LOGIN, Kind.DENIED]),
        excluded_principals=frozenset(["User:CN=a,OU=b", "User:c"]),
        excluded_topics=frozenset(["noise", "more"]),
        is_closed=True,
    )


def test_the_topic_alone_is_the_default(tmp_path: Path) -> None:
    auditing = built(tmp_path, {"audit.enable": "true"})
    assert auditing is not None
    assert [outbox.name for outbox in auditing.auditor.outboxes] == ["topic"]
    assert auditing.auditor.policy.kinds == frozenset(DEFAULT_KINDS)


def test_an_audit_without_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="needs a place"):
        built(tmp_path, {"audit.enable": "true", "audit.topic.enable": "false"})
