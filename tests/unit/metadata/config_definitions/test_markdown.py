"""The reference page of all settings: every one in its place, each with what a reader needs."""

from __future__ import annotations

import pytest

from millrace.metadata.config_definitions.markdown import render_markdown
from millrace.metadata.config_definitions.refused import refused_settings
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, TOPIC_SETTINGS

ALL_SETTINGS = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]


def test_the_page_lists_settings_without_effect_apart_from_the_others() -> None:
    page = render_markdown()
    assert "### `log.cleaner.threads`" not in page
    apart = page[
        page.index("## Accepted, without effect") : page.index("## Settings of Kafka that are refused")
    ]
    missing = [s.name for s in ALL_SETTINGS if s.without_effect and f"| `{s.name}` |" not in apart]
    assert not missing
    assert "| `sasl.kerberos.*` |" in page


def test_the_page_names_every_setting() -> None:
    page = render_markdown()
    for setting in ALL_SETTINGS:
        has_section = not setting.internal and not setting.without_effect
        assert (f"### `{setting.name}`\n" in page) is has_section


def section_of(name: str) -> str:
    return render_markdown().split(f"### `{name}`\n")[-1].split("\n#")[0]


@pytest.mark.parametrize(
    "name, line",
    [
        ("log.retention.ms", "- default: none"),
        ("log.flush.interval.messages", "- default: `9223372036854775807` (no limit)"),
        ("max.connections.per.ip.overrides", "- default: empty"),
        ("node.id", "- changes: only by a restart"),
        ("log.retention.ms", "- changes: while running"),
        # The last section of a name is that of a topic.
        ("retention.ms", "- default: `604800000`, from `log.retention.ms`, `log.retention.minutes`, "),
    ],
)
def test_a_section_says_the_default_and_when_it_changes(name: str, line: str) -> None:
    assert any(each.startswith(line) for each in section_of(name).splitlines()), section_of(name)


def test_a_default_that_is_not_kafkas_has_its_reason() -> None:
    deviating = [setting for setting in ALL_SETTINGS if setting.deviates and not setting.internal]
    assert deviating
    page = render_markdown()
    assert all(f"- unlike Kafka: {setting.deviates}" in page for setting in deviating)


def test_the_page_ends_with_a_table_of_what_is_refused() -> None:
    table = render_markdown().split("| setting | why |\n|---|---|\n")[1].splitlines()
    assert table == [f"| `{name}` | {reason} |" for name, reason in refused_settings()]


def test_no_line_of_a_table_has_a_bar_too_many() -> None:
    for line in render_markdown().splitlines():
        if line.startswith("|"):
            assert line.count("|") in (3, 5), line
