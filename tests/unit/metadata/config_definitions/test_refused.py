"""Settings of Kafka that guard something are refused with the reason, and are never settings here."""

from __future__ import annotations

import pytest

from millrace.metadata.config_definitions.refused import refusal, refused_settings, unknown_setting
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, TOPIC_SETTINGS

SECRETS_AND_GUARDS = (
    *("sasl.kerberos.service.name", "sasl.login.class", "ssl.engine.factory.class", "security.providers"),
    *("principal.builder.class", "sasl.oauthbearer.client.credentials.client.secret", "ssl.provider"),
    "client.quota.callback.class",
    *("create.topic.policy.class.name", "alter.config.policy.class.name", "cordoned.log.dirs"),
)


def test_what_is_refused_is_not_also_a_setting() -> None:
    refused = [name for name in [*BROKER_SETTINGS, *TOPIC_SETTINGS] if refusal(name) is not None]
    assert not refused


@pytest.mark.parametrize("name", SECRETS_AND_GUARDS)
def test_what_guards_something_in_kafka_is_refused_with_the_reason(name: str) -> None:
    assert name not in BROKER_SETTINGS
    error = unknown_setting(name, BROKER_SETTINGS, "broker")
    assert "a setting of Kafka that is not accepted: ignoring it would" in str(error)


def test_a_family_is_refused_by_the_beginning_of_its_names() -> None:
    for name in ("sasl.kerberos.", "sasl.kerberos.x.y", "sasl.login.class", "sasl.oauthbearer.jwt.x"):
        assert refusal(name) is not None, name
    for name in ("sasl.kerberosx", "my.sasl.login.class", "broker.id.generation", ""):
        assert refusal(name) is None, name


def test_a_name_that_kafka_does_not_know_gets_the_name_that_was_meant() -> None:
    error = str(unknown_setting("log.retention.mss", BROKER_SETTINGS, "broker"))
    assert "unknown broker setting; did you mean log.retention.ms?" in error
    assert "did you mean" not in str(unknown_setting("xyzzy", BROKER_SETTINGS, "broker"))


def test_every_line_of_the_page_is_refused_for_the_reason_that_it_names() -> None:
    lines = list(refused_settings())
    assert lines == sorted(lines)
    assert len({name for name, _ in lines}) == len(lines)
    for name, reason in lines:
        assert refusal(name.replace("*", "some.name")) == reason
