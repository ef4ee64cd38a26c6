"""Settings of share groups' membership."""

from __future__ import annotations

from millrace.groups.share.commands import ShareGroupSettings


def test_a_member_may_miss_heartbeats_before_its_session_ends() -> None:
    settings = ShareGroupSettings()
    assert settings.session_timeout_ms >= 3 * settings.heartbeat_interval_ms
