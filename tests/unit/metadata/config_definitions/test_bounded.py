"""Settings of groups within bounds that the broker sets."""

from __future__ import annotations

from millrace.metadata.config_definitions.bounded import like_broker, with_bounds
from millrace.metadata.config_definitions.model import Range, UpdateMode


def test_a_value_comes_with_its_bounds_and_only_the_value_changes_while_running() -> None:
    value, low, high = with_bounds(
        "share", "wait.ms", "How long.", 5, 1, 9, Range(0), update=UpdateMode.CLUSTER_WIDE
    )
    assert [each.name for each in (value, low, high)] == [
        "group.share.wait.ms",
        "group.share.min.wait.ms",
        "group.share.max.wait.ms",
    ]
    assert [each.default for each in (value, low, high)] == [5, 1, 9]
    assert (value.update, low.update) == (UpdateMode.CLUSTER_WIDE, UpdateMode.READ_ONLY)


def test_a_group_falls_back_to_its_broker() -> None:
    setting = like_broker("share", "wait.ms", "How long.", 5, Range(0))
    assert (setting.name, setting.synonyms[0].name) == ("share.wait.ms", "group.share.wait.ms")
