"""The audit is built as the settings ask for it, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.broker.assembly.auditing import build_auditing
from millrace.broker.auditing.auditing import Auditing
from millrace.metadata.errors import InvalidConfig
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import DEFAULT_KINDS, Kind
from tests.unit.broker.assembly.grounds import ground_of
from tests.unit.broker.assembly.test_serving import services_of


def built(directory: Path, settings: dict[str, str]) -> Auditing | None:
    async def build() -> Auditing | None:
        ground = ground_of(directory, settings)
        services = services_of(ground)
        auditing = build_auditing(ground, services)
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
