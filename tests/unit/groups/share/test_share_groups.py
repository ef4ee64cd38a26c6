"""The settings of share groups, by group."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.share.share_groups import ShareGroups
from millrace.metadata.service import Metadata


class Resolved:
    """Counts how often settings are worked out."""

    def __init__(self) -> None:
        self.count = 0
        self.interval_ms = 5_000

    def __call__(self, configs: Mapping[str, str]) -> ShareGroupSettings:
        self.count += 1
        return ShareGroupSettings(heartbeat_interval_ms=int(configs.get("interval", self.interval_ms)))


def test_a_group_with_settings_of_its_own_has_them_until_they_change() -> None:
    configs: dict[str, dict[str, str]] = {"own": {"interval": "7"}}
    resolve = Resolved()
    metadata = SimpleNamespace(image=SimpleNamespace(group_configs=configs))
    shares = ShareGroups(cast("Metadata", metadata), resolve)
    for _ in range(3):
        assert shares.settings_of("own").heartbeat_interval_ms == 7
        assert shares.settings_of("other").heartbeat_interval_ms == 5_000
    assert resolve.count == 2, "once for each"
    configs["own"] = {"interval": "8"}
    assert shares.settings_of("own").heartbeat_interval_ms == 8
    del configs["own"]
    assert shares.settings_of("own").heartbeat_interval_ms == 5_000
    resolve.interval_ms = 6_000
    shares.settings_changed()
    assert shares.settings_of("own").heartbeat_interval_ms == 6_000
