"""The security of listeners: what is set for one counts for it, and what cannot work is refused at once."""

from __future__ import annotations

import pytest

from millrace.broker.config.config import BrokerConfig, load
from millrace.broker.config.listener_security import login_settings, tls_settings
from millrace.metadata.errors import InvalidConfig

KEYS = {"ssl.keystore.location": "/k.pem"}
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}
SSL = {"listeners": "SSL://127.0.0.1:0", **KEYS}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="hunter2";'
OAUTH = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
}
URL = "https://id.example/keys"


def loaded(settings: dict[str, str]) -> BrokerConfig:
    return load(None, settings, {})


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"listeners": "SSL://:0"}, r"listener\.name\.ssl\.ssl\.keystore\.location: missing"),
        ({"listeners": "SASL_SSL://:0", **KEYS}, r"sasl\.enabled\.mechanisms: missing.*SASL_SSL"),
        ({**SASL, "sasl.enabled.mechanisms": "GSSAPI"}, "not allowed"),
        ({**SASL, "sasl.enabled.mechanisms": "PLAIN,PLAIN"}, "not allowed"),
        ({**SSL, "ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({**SSL, "ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
        ({**SSL, "ssl.client.auth": "required"}, r"ssl\.truststore\.location: missing"),
        ({**SSL, "ssl.client.auth": "always"}, "not allowed"),
        ({**SSL, "ssl.enabled.protocols": "TLSv1.1"}, "not allowed"),
        ({**SSL, "ssl.keystore.key": "hunter2"}, "one of them counts"),
        ({"listeners": "SSL://:0", "ssl.keystore.key": "hunter2"}, "the other way round"),
        ({**SSL, "ssl.principal.mapping.rules": "RULE:(?=a)b/x/"}, "RE2"),
        ({**SASL, JAAS: "hunter2"}, "a login module, its flag and its options"),
        ({**SASL, JAAS: USERS.replace("PlainLoginModule", "Other")}, "PlainLoginModule"),
        ({**SASL, "listener.name.other.plain.sasl.jaas.config": USERS}, "no listener is called other"),
        ({**SASL, "listener.name.sasl_plaintext.sasl.jaas.config": USERS}, "unknown broker setting"),
        ({"sasl.jaas.config": USERS}, "for one mechanism of one listener"),
        (OAUTH, r"jwks\.endpoint\.url: missing"),
        ({**OAUTH, "sasl.oauthbearer.jwks.endpoint.url": URL}, "not on the list of allowed URLs"),
        (
            {
                **OAUTH,
                "sasl.oauthbearer.jwks.endpoint.url": "http://id.example/keys",
                "sasl.oauthbearer.allowed.urls": "http://id.example/keys",
            },
            "neither https nor file",
        ),
        (
            {"security.inter.broker.protocol": "SSL", "inter.broker.listener.name": "PLAINTEXT"},
            r"given beside inter\.broker\.listener\.name",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "no listener has this name"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start_without_a_secret(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        loaded(settings)
    assert "hunter2" not in str(refused.value)


def test_a_listener_has_its_own_settings_before_those_of_all() -> None:
    config = loaded(
        {
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
            "listener.security.protocol.map": "IN:SSL,OUT:SASL_SSL",
            **KEYS,
            "ssl.truststore.certificates": "hunter2",
            "listener.name.in.ssl.client.auth": "required",
            "listener.name.out.ssl.keystore.location": "/o.pem",
            "listener.name.out.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.out.plain.connections.max.reauth.ms": "5000",
            "connection.failed.authentication.delay.ms": "7",
        }
    )
    inside, outside = config.listeners
    tls = tls_settings(config, inside)
    assert (tls.keys.location, tls.client_auth) == ("/k.pem", "required")
    assert tls.rules.name_of("CN=a") == "CN=a"
    tls = tls_settings(config, outside)
    assert (tls.keys.location, tls.client_auth, tls.trust.certificates) == ("/o.pem", "none", "hunter2")
    logins = login_settings(config, outside)
    assert logins.mechanisms == ("SCRAM-SHA-512", "PLAIN")
    assert logins.reauthentication_ms_max == {"SCRAM-SHA-512": 0, "PLAIN": 5000}
    assert logins.failure_delay_ms == 7
    assert logins.plain_users is None
    assert logins.oauth is None


def test_users_of_plain_come_from_jaas_and_are_not_shown() -> None:
    config = loaded({**SASL, JAAS: USERS})
    logins = login_settings(config, config.listeners[0])
    assert logins.plain_users == {"alice": "hunter2"}
    assert "hunter2" not in repr(logins)


def test_a_key_set_may_be_in_a_file_or_left_out_for_tests() -> None:
    url = "file:///etc/keys.json"
    config = loaded(
        {
            **OAUTH,
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.allowed.urls": url,
            "sasl.oauthbearer.expected.audience": "a,b",
            "sasl.oauthbearer.groups.claim.name": "realm_access.roles",
        }
    )
    oauth = login_settings(config, config.listeners[0]).oauth
    assert oauth is not None
    assert (oauth.url, oauth.tokens.audiences, oauth.refresh_s) == (url, ("a", "b"), 3600)
    assert oauth.tokens.groups_claim == "realm_access.roles"
    config = loaded({**OAUTH, "sasl.oauthbearer.unsecured.enable": "true"})
    oauth = login_settings(config, config.listeners[0]).oauth
    assert oauth is not None
    assert oauth.is_unsecured


def test_brokers_may_use_the_listener_of_a_protocol() -> None:
    config = loaded({**SSL, "security.inter.broker.protocol": "SSL"})
    assert config.listener_between_brokers == "SSL"
    assert loaded({}).listener_between_brokers is None
