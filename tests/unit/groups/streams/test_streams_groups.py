"""Rules of streams groups see the settings of this moment."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from millrace.core.background import Background
from millrace.groups.commands import GroupSettings
from millrace.groups.machine import GroupMachine
from millrace.groups.service import Groups
from millrace.groups.streams.commands import StreamsBeat, StreamsSettings
from millrace.groups.streams.streams_groups import StreamsGroups
from millrace.metadata.image import EMPTY
from millrace.metadata.service import Metadata
from tests.unit.groups.streams.topologies import word_count
from tests.unit.groups.streams_lab import StreamsClient


def test_a_change_of_the_settings_reaches_the_rules() -> None:
    interval = {"ms": 5_000}

    def resolve(configs: Mapping[str, str]) -> StreamsSettings:
        return StreamsSettings(heartbeat_interval_ms=interval["ms"])

    streams = StreamsGroups(cast("Metadata", SimpleNamespace(image=EMPTY)), resolve)
    streams.start(cast("Groups", None), cast("Background", None))
    machine = GroupMachine(GroupSettings(), None, [streams.new_rules])

    def interval_of(member_id: str) -> int:
        answer = machine.decide(StreamsClient(member_id, word_count()).beat(), 0, 1).response
        assert isinstance(answer, StreamsBeat)
        return answer.heartbeat_interval_ms

    assert interval_of("a") == 5_000
    interval["ms"] = 7_000
    streams.settings_changed()
    assert interval_of("b") == 7_000
    streams.stop()
