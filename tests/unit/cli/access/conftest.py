"""The cluster that commands speak to."""

from __future__ import annotations

import pytest

from tests.unit.cli.access.fake_cluster import FakeCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return FakeCluster(monkeypatch)
