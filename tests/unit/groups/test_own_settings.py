"""The settings of groups, by group."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from millrace.groups.own_settings import OwnSettings
from millrace.metadata.service import Metadata


def test_settings_are_worked_out_once_until_something_changes() -> None:
    configs: dict[str, dict[str, str]] = {"own": {"size": "7"}}
    worked_out: list[str] = []
    broker = {"size": "5"}

    def resolve(own: Mapping[str, str]) -> int:
        worked_out.append(own.get("size", "broker"))
        return int(own.get("size", broker["size"]))

    metadata = SimpleNamespace(image=SimpleNamespace(group_configs=configs))
    settings = OwnSettings(cast("Metadata", metadata), resolve)
    assert [settings.of(name) for name in ("own", "other", "own", "other")] == [7, 5, 7, 5]
    assert worked_out == ["broker", "7"]
    configs["own"] = {"size": "8"}
    assert settings.of("own") == 8
    broker["size"] = "6"
    settings.broker_changed()
    assert (settings.of("own"), settings.of("other")) == (8, 6)
    del configs["own"]
    assert settings.of("own") == 6
