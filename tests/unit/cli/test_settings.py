"""Settings as a running broker reports and accepts them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AlterConfigOpType, ConfigResource, ConfigSource

from millrace.cli import settings
from millrace.cli.clients import RequestFailed
from millrace.cli.settings import Setting
from tests.unit.cli.fakes import ADDRESS, done, failed


class Admin:
    def __init__(self, answer: Future[Any]) -> None:
        self._answer = answer
        self.altered: list[ConfigResource] = []

    def describe_configs(self, resources: list[ConfigResource]) -> dict[ConfigResource, Future[Any]]:
        return dict.fromkeys(resources, self._answer)

    def incremental_alter_configs(self, resources: list[ConfigResource]) -> dict[ConfigResource, Future[Any]]:
        self.altered += resources
        return dict.fromkeys(resources, self._answer)


def entry(value: str | None, source: ConfigSource, *, is_sensitive: bool = False) -> SimpleNamespace:
    return SimpleNamespace(value=value, source=source.value, is_read_only=False, is_sensitive=is_sensitive)


def test_settings_are_sorted_and_their_sources_named() -> None:
    entries = {
        "z": entry("1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        "a": entry(None, ConfigSource.DEFAULT_CONFIG, is_sensitive=True),
        "m": entry("x", ConfigSource.STATIC_BROKER_CONFIG),
        "u": entry("x", ConfigSource.UNKNOWN_CONFIG),
    }
    found = settings.describe(Admin(done(entries)), ADDRESS, settings.topic_resource("t"))  # type: ignore[arg-type]
    assert found == [
        Setting(name="a", value=None, source="DEFAULT", read_only=False, sensitive=True),
        Setting(name="m", value="x", source="STATIC_BROKER", read_only=False, sensitive=False),
        Setting(name="u", value="x", source="UNKNOWN", read_only=False, sensitive=False),
        Setting(name="z", value="1", source="DYNAMIC_TOPIC", read_only=False, sensitive=False),
    ]


def test_only_what_is_named_is_changed() -> None:
    admin = Admin(done())
    settings.alter(admin, ADDRESS, settings.broker_resource(3), {"a": "1", "b": ""}, ("c",))  # type: ignore[arg-type]
    (resource,) = admin.altered
    assert (resource.restype, resource.name) == (ConfigResource.Type.BROKER, "3")
    changes = [(each.name, each.value, each.incremental_operation) for each in resource.incremental_configs]
    assert changes == [
        ("a", "1", AlterConfigOpType.SET),
        ("b", "", AlterConfigOpType.SET),
        ("c", None, AlterConfigOpType.DELETE),
    ]


def test_a_refusal_names_the_topic() -> None:
    admin = Admin(failed(KafkaError.INVALID_CONFIG, "retention.ms=soon is not a number"))
    with pytest.raises(RequestFailed, match=r"^t: retention.ms=soon is not a number \(INVALID_CONFIG\)$"):
        settings.alter(admin, ADDRESS, settings.topic_resource("t"), {"retention.ms": "soon"}, ())  # type: ignore[arg-type]
