"""What is answered of state that nobody has initialized is what Kafka answers."""

from __future__ import annotations

from millrace.queues.state.commands import StateSettings, StateSummary


def test_a_summary_of_nothing_has_kafkas_defaults() -> None:
    assert StateSummary() == (0, 0, -1, -1)


def test_settings_have_kafkas_defaults() -> None:
    settings = StateSettings()
    assert (settings.updates_per_snapshot, settings.write_timeout_ms) == (500, 5_000)
    assert (settings.prune_interval_ms, settings.rewrite_interval_ms) == (300_000, 300_000)
