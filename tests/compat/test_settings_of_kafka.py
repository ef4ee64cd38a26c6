"""Every setting that Kafka itself defines is known here: with an effect, without one, or refused."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest

from millrace.metadata.config_definitions import BROKER_SETTINGS, TOPIC_SETTINGS, format_value, refusal
from tools.kafka_distribution import PROJECT_ROOT, locate


class KafkaSetting(NamedTuple):
    scope: str
    name: str
    type: str
    default: str
    update: str


@pytest.fixture(scope="module")
def settings_of_kafka() -> list[KafkaSetting]:
    distribution = locate()
    source = PROJECT_ROOT / "tests" / "compat" / "java" / "KafkaSettings.java"
    words = [distribution.java, "-Xmx256m", "-cp", distribution.classpath, str(source)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return [KafkaSetting(*line.split("\t")) for line in done.stdout.splitlines()]


def test_every_setting_of_kafka_is_accepted_or_refused_with_a_reason(
    settings_of_kafka: list[KafkaSetting],
) -> None:
    tables = {"broker": BROKER_SETTINGS, "topic": TOPIC_SETTINGS}
    unknown = [
        setting.name
        for setting in settings_of_kafka
        if setting.name not in tables[setting.scope] and refusal(setting.name) is None
    ]
    assert not unknown
    assert len(settings_of_kafka) > 300


def test_settings_without_effect_have_kafkas_types_defaults_and_ways_to_change(
    settings_of_kafka: list[KafkaSetting],
) -> None:
    by_name = {setting.name: setting for setting in settings_of_kafka if setting.scope == "broker"}
    for setting in BROKER_SETTINGS.values():
        if setting.without_effect:
            kafkas = by_name[setting.name]
            assert setting.type.name == kafkas.type, setting.name
            assert (format_value(setting.default) or "") == kafkas.default, setting.name
            assert setting.update.value == kafkas.update, setting.name
