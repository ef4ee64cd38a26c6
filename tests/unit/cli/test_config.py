"""`millrace config`: explanations without a broker, and what is asked of one."""

from __future__ import annotations

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import ConfigResource

from millrace.cli import clients, settings
from millrace.cli.config import config
from millrace.cli.settings import Setting
from millrace.metadata.config_definitions.markdown import render_markdown


def run(*words: str) -> str:
    result = CliRunner().invoke(config, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_setting_is_explained_with_default_and_range() -> None:
    text = run("docs", "log.retention.ms")
    assert "log.retention.ms\n" in text
    assert "broker setting, long, default none; allowed: " in text
    assert "can be changed: while running\n" in text


def test_names_are_searched_in_brokers_and_topics_unless_one_is_asked_for() -> None:
    def found(*words: str) -> list[tuple[str, str]]:
        lines = [orjson.loads(line) for line in run("docs", "--json", *words).splitlines()]
        return [(line["scope"], line["name"]) for line in lines]

    everywhere = found("retention.ms")
    assert ("topic", "retention.ms") in everywhere
    assert ("broker", "log.retention.ms") in everywhere
    assert found("retention.ms", "--topic") == [each for each in everywhere if each[0] == "topic"]
    assert found("retention.ms", "--broker") == [each for each in everywhere if each[0] == "broker"]


def test_settings_without_effect_are_explained_only_by_their_whole_name() -> None:
    assert "num.io.threads" not in run("docs")
    assert "Accepted, without effect" in run("docs", "num.io.threads")
    assert CliRunner().invoke(config, ["docs", "num.io.thread"]).exit_code == 1


def test_a_name_that_nobody_has_is_told() -> None:
    result = CliRunner().invoke(config, ["docs", "nonsense", "humbug"])
    assert result.exit_code == 1
    assert "no setting is called nonsense or humbug" in result.output


def test_the_markdown_page_is_the_generated_one_and_goes_alone() -> None:
    assert run("docs", "--markdown") == render_markdown()
    result = CliRunner().invoke(config, ["docs", "--markdown", "--json"])
    assert result.exit_code == 2
    assert "goes with no other option" in result.output


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []
    found = [
        Setting(name="retention.ms", value="5", source="DYNAMIC_TOPIC", read_only=False, sensitive=False),
        Setting(name="a.password", value=None, source="STATIC_BROKER", read_only=True, sensitive=True),
        Setting(name="segment.ms", value="6", source="DEFAULT", read_only=False, sensitive=False),
    ]

    def describe(_admin: object, _address: object, resource: ConfigResource) -> list[Setting]:
        calls.append((resource.restype.name, resource.name))
        return found if resource.name != "plain" else found[2:]

    def alter(
        _admin: object,
        _address: object,
        resource: ConfigResource,
        changes: dict[str, str],
        deleted: tuple[str, ...],
    ) -> None:
        calls.append((resource.restype.name, resource.name, changes, deleted))

    monkeypatch.setattr(clients, "admin_client", lambda _address: None)
    monkeypatch.setattr(settings, "describe", describe)
    monkeypatch.setattr(settings, "alter", alter)
    return calls


def test_only_settings_that_somebody_set_are_shown(asked: list[tuple[object, ...]]) -> None:
    lines = [line.split() for line in run("describe", "--topic", "t").splitlines()]
    assert lines == [
        ["SETTING", "VALUE", "SOURCE"],
        ["retention.ms", "5", "DYNAMIC_TOPIC"],
        ["a.password", "(hidden)", "STATIC_BROKER"],
    ]
    assert asked == [("TOPIC", "t")]
    assert "segment.ms" in run("describe", "--broker", "4", "--all")
    assert asked[-1] == ("BROKER", "4")


@pytest.mark.usefixtures("asked")
def test_programs_get_an_object_for_each_setting() -> None:
    first = orjson.loads(run("describe", "--topic", "t", "--json").splitlines()[0])
    assert first == {
        "name": "retention.ms",
        "value": "5",
        "source": "DYNAMIC_TOPIC",
        "read_only": False,
        "sensitive": False,
    }


@pytest.mark.usefixtures("asked")
def test_nothing_set_is_said_in_words() -> None:
    assert run("describe", "--topic", "plain") == "all settings are at their defaults; --all shows them\n"


def test_changes_go_to_the_topic_group_or_broker_that_is_named(asked: list[tuple[object, ...]]) -> None:
    assert run("alter", "--topic", "t", "-s", "a=1", "-d", "b") == "changed the settings of topic t\n"
    assert run("alter", "--broker", "2", "-s", "a=1") == "changed the settings of broker 2\n"
    assert run("alter", "--group", "g", "-s", "a=1") == "changed the settings of group g\n"
    assert asked == [
        ("TOPIC", "t", {"a": "1"}, ("b",)),
        ("BROKER", "2", {"a": "1"}, ()),
        ("GROUP", "g", {"a": "1"}, ()),
    ]
