"""docs/backpressure.md names settings and metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from millrace.client.property_names import KNOWN
from millrace.metadata.config_definitions import BROKER_SETTINGS, TOPIC_SETTINGS
from millrace.security.config_resources import TENANT_SETTINGS
from millrace.security.quotas.keys import IP_KEYS, KEYS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "backpressure.md").read_text()
OF_CLIENTS = frozenset(("max.poll.records", "fetch.max.wait.ms"))


def test_every_metric_is_there() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/millrace/broker/watching").glob("*.py"))
    named = set(re.findall(r"millrace_[a-z_]+", PAGE))
    assert len(named) > 15
    missing = [name for name in sorted(named) if f'"{name.removesuffix("_total")}' not in source]
    assert not missing


def test_every_setting_is_there() -> None:
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?`", PAGE))
    assert len(named) > 30
    known = {*BROKER_SETTINGS, *TOPIC_SETTINGS, *TENANT_SETTINGS, *KNOWN, *OF_CLIENTS}
    assert sorted(named - known) == []


def test_every_quota_is_there() -> None:
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", PAGE))
    quotas = {
        name for name in named if name.endswith(("_rate", "_percentage")) and not name.startswith("millrace_")
    }
    assert quotas == {*KEYS, *IP_KEYS}
