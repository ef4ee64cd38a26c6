"""How a broker reaches the others, from the settings of the listener between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.broker.config.between_brokers import listener_to_others, security_to_others
from millrace.broker.config.config import BrokerConfig, load
from millrace.client.security import PLAINTEXT
from millrace.metadata.errors import InvalidConfig

CLUSTER = {"metadata.store": "etcd", "etcd.endpoints": "http://127.0.0.1:2379", "node.id": "1"}
TWO = {
    **CLUSTER,
    "listeners": "CLIENTS://127.0.0.1:1,INSIDE://127.0.0.1:2",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:SASL_SSL",
    "inter.broker.listener.name": "inside",
    "listener.name.inside.ssl.keystore.location": "/k.pem",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
}
MECHANISM = {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}
JAAS = "listener.name.inside.scram-sha-512.sasl.jaas.config"
LOGIN = {JAAS: 'ScramLoginModule required username="broker" password="hunter2";'}
OAUTH = {
    **TWO,
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.unsecured.enable": "true",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "listener.name.inside.oauthbearer.sasl.jaas.config": 'M required clientId="b" clientSecret="hunter2";',
}
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


def loaded(settings: dict[str, str]) -> BrokerConfig:
    return load(None, settings, {})


def test_without_anything_set_brokers_speak_plainly() -> None:
    config = loaded({"listeners": "PLAINTEXT://127.0.0.1:1"})
    assert listener_to_others(config).name == "PLAINTEXT"
    assert security_to_others(config) is PLAINTEXT


def test_the_login_is_the_brokers_own_of_that_listener_and_mechanism() -> None:
    found = security_to_others(loaded(TWO | MECHANISM | LOGIN))
    assert (found.protocol, found.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (found.username, found.password) == ("broker", "hunter2")
    assert "hunter2" not in repr(found)
    assert (found.tls.certificate_file, found.tls.check_hostname) == ("/k.pem", True)


def test_certificates_are_shown_and_checked_as_the_listener_says(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("x")
    found = security_to_others(
        loaded({
            **CLUSTER,
            "listeners": "SSL://127.0.0.1:1",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.key": "hunter2",
            "ssl.keystore.certificate.chain": "chain",
            "ssl.truststore.location": str(authority),
            "listener.name.ssl.ssl.endpoint.identification.algorithm": "",
        })
    )  # fmt: skip
    assert (found.protocol, found.tls.key_pem, found.tls.certificate_pem) == ("SSL", "hunter2", "chain")
    assert (found.tls.ca_file, found.tls.check_hostname) == (str(authority), False)
    assert "hunter2" not in repr(found)


def test_tokens_come_from_an_allowed_endpoint() -> None:
    url = "https://id.example/token"
    with pytest.raises(InvalidConfig, match="not on the list of allowed URLs") as refused:
        loaded(OAUTH | {ENDPOINT: url})
    assert "hunter2" not in str(refused.value)
    found = security_to_others(loaded(OAUTH | {ENDPOINT: url, "sasl.oauthbearer.allowed.urls": url}))
    assert found.tokens is not None
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("settings, words", [
    (TWO, r"sasl\.mechanism\.inter\.broker\.protocol: missing.*INSIDE"),
    (TWO | MECHANISM, r"listener\.name\.inside\.scram-sha-512\.sasl\.jaas\.config: missing"),
    (TWO | {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "not one by which others can log in"),
    (TWO | MECHANISM | {JAAS: 'M required user_a="hunter2";'}, r"needs sasl\.username"),
    (TWO | MECHANISM | {JAAS: 'M required username="b" password="hunter2"'}, "ended by a semicolon"),
    (TWO | MECHANISM | LOGIN | {"ssl.truststore.location": "/none"}, "there is no such file"),
    (TWO | MECHANISM | LOGIN | {"ssl.keystore.type": "PKCS12"}, "with PEM alone"),
    (OAUTH, "needs one of sasl.oauthbearer.token"),
])  # fmt: skip
def test_a_cluster_that_could_not_replicate_does_not_start(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        loaded(settings)
    assert "hunter2" not in str(refused.value)


def test_a_broker_alone_needs_no_login_to_others() -> None:
    alone = {name: value for name, value in TWO.items() if name not in CLUSTER}
    assert loaded(alone).is_clustered is False
