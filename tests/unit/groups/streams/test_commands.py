"""Settings and statuses of streams groups."""

from __future__ import annotations

from millrace.groups.streams.commands import StatusCode, StreamsSettings


def test_a_member_may_miss_heartbeats_before_its_session_ends() -> None:
    settings = StreamsSettings()
    assert settings.session_timeout_ms >= 3 * settings.heartbeat_interval_ms


def test_statuses_have_the_numbers_that_clients_know() -> None:
    assert [code.value for code in StatusCode] == [0, 1, 2, 3, 4, 5]
    assert StatusCode(3) is StatusCode.MISSING_INTERNAL_TOPICS
