"""The rules that handlers decide by follow the metadata and the settings, in the same step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.assembly.access import follow_permissions
from millrace.broker.config.config import load
from millrace.broker.config.live import LiveConfig
from millrace.metadata.image import EMPTY
from millrace.metadata.service import Metadata
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.principals import user
from tests.unit.broker.handlers.broker import RESTRICTED, Broker
from tests.unit.security.acls.models import acl


def nothing_changes() -> Metadata:
    return cast("Metadata", SimpleNamespace(image=EMPTY, subscribe=lambda _callback: None))


def config_of(**settings: str) -> Any:
    return load(None, {name.replace("_", "."): value for name, value in settings.items()}, {})


def test_without_an_authorizer_nothing_is_restricted() -> None:
    assert follow_permissions(LiveConfig(config_of()), nothing_changes()).authorizer is None


def test_the_settings_decide_and_may_change() -> None:
    live = LiveConfig(load(None, RESTRICTED, {}))
    access = follow_permissions(live, nothing_changes())
    told: list[object] = []
    access.watch(lambda: told.append(access.authorizer))
    first = access.authorizer
    assert first is not None
    assert first.super_users == {"User:admin"}
    assert not first.is_open_without_acl
    live.replace(load(None, {**RESTRICTED, "max.connections": "5"}, {}))
    assert access.authorizer is first
    live.replace(load(None, {**RESTRICTED, "allow.everyone.if.no.acl.found": "true"}, {}))
    second = access.authorizer
    assert second is not None
    assert second.is_open_without_acl
    live.replace(config_of())
    assert told == [second, None]


def test_a_permission_counts_before_its_change_is_answered(tmp_path: Path) -> None:
    broker = Broker(tmp_path, RESTRICTED)
    broker.start()
    try:
        access = broker.services.access
        broker.create_topic("unrelated")
        before = access.authorizer
        assert before is not None
        alice = before.subject(user("alice"), "host")
        assert not before.allows(alice, Operation.READ, ResourceType.TOPIC, "orders")
        permission = acl("orders", principal="User:alice")
        broker.allow(permission)
        after = access.authorizer
        assert after is not None
        assert after is not before
        assert after.allows(alice, Operation.READ, ResourceType.TOPIC, "orders")
        broker.create_topic("another")
        assert access.authorizer is after, "nothing has changed that it depends on"
        broker.take_back(permission)
        assert access.authorizer is not None
        assert not access.authorizer.allows(alice, Operation.READ, ResourceType.TOPIC, "orders")
    finally:
        broker.stop()
