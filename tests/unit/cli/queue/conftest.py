"""A share group that is known to the command line without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.cli.group import share_groups
from millrace.cli.group.share_groups import Progress
from millrace.cli.queue import group_settings
from millrace.core.ids import TopicPartition
from millrace.wire.records import Record
from tests.unit.cli.queue.fakes import Cluster


class KnownGroup:
    """Group g on topic t: two partitions, of which nobody has fetched from the second."""

    def __init__(self) -> None:
        self.cluster = Cluster({"t": 2, "dlq": 1})
        self.members: list[Any] = []
        self.settings: dict[str, str] = {}
        self.altered: dict[tuple[str, int], int] = {}
        self.progress = {("t", 0): Progress(1, 2), ("t", 1): Progress(None, None)}
        for partition in range(2):
            records = [Record(offset, 1_000 * offset, b"k", b"%d" % offset) for offset in range(3)]
            self.cluster.add(TopicPartition("t", partition), *records)

    def find(self, _address: object, name: str) -> Any:
        return SimpleNamespace(state="Stable", members=tuple(self.members)) if name == "g" else None

    def alter(self, _address: object, _name: str, offsets: dict[tuple[str, int], int]) -> None:
        self.altered = dict(offsets)

    def change(self, _client: object, _group: str, changes: dict[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = value


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownGroup:
    known = KnownGroup()
    monkeypatch.setattr(share_groups, "find", known.find)
    monkeypatch.setattr(share_groups, "progress", lambda *_: known.progress)
    monkeypatch.setattr(share_groups, "alter", known.alter)
    monkeypatch.setattr(share_groups, "open_client", lambda _address: known.cluster)
    monkeypatch.setattr(group_settings, "settings_of", lambda *_: dict(known.settings))
    monkeypatch.setattr(group_settings, "change", known.change)
    return known
