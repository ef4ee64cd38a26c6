"""Options of security, by the names of both families of clients."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from millrace.client.errors import InvalidOption
from millrace.client.security import SecurityOptions, login_of, read_security
from millrace.client.tls import TlsOptions

SASL = {"security.protocol": "sasl_plaintext", "sasl.username": "u", "sasl.password": "geheim"}


TLS = {"security.protocol": "SSL"}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def test_without_options_connections_are_plain() -> None:
    found = read_security({"subscribe": "a"})
    assert (found, found.uses_tls, found.uses_sasl) == (SecurityOptions(), False, False)
    assert found.tls_context() is None


def test_names_may_carry_the_prefix_of_kafka() -> None:
    found = read_security({f"kafka.{name}": value for name, value in SASL.items()})
    assert (found.protocol, found.mechanism, found.username) == ("SASL_PLAINTEXT", "PLAIN", "u")
    assert found == read_security(SASL)


def test_secrets_are_in_no_representation() -> None:
    found = read_security(SASL | {"security.protocol": "SASL_SSL", "ssl.key.password": "tresor"})
    assert (found.password, found.tls.key_password) == ("geheim", "tresor")
    assert "geheim" not in repr(found)
    assert "tresor" not in repr(found)


@pytest.mark.parametrize("options, words", [
    ({"security.protocol": "TLS"}, "security.protocol=TLS: must be one of PLAINTEXT, SSL"),
    (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: must be one of PLAIN"),
    ({"security.protocol": "SASL_SSL", "sasl.username": "u"}, "needs sasl.password"),
    ({"sasl.username": "u"}, "sasl options are given, but security.protocol is PLAINTEXT"),
    (SASL | {"kafka.sasl.username": "v"}, "sasl.username and kafka.sasl.username are both given and differ"),
    ({"ssl.ca.location": "/etc/hosts"}, "ssl.ca.location is given, but security.protocol is PLAINTEXT"),
    ({"security.protocol": "SSL", "ssl.ca.location": "/none"}, "ca.location=/none: there is no such file"),
    ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "must be https or none"),
    (TLS | {"ssl.keystore.type": "JKS"}, "ssl.keystore.type=JKS: only PEM can be read here"),
    (TLS | {"ssl.key.pem": "geheim"}, "ssl.key.pem needs ssl.certificate.pem"),
    (TLS | {"ssl.key.location": "/etc/hosts"}, "ssl.key.location needs ssl.certificate.location"),
    (TLS | {"ssl.ca.pem": "x", "ssl.ca.location": "/etc/hosts"}, "ssl.ca.location and ssl.ca.pem are both"),
    (SASL | {"sasl.delegation.token": "true"}, "true only with SCRAM"),
    (SASL | {"sasl.password": "geheim\0"}, "sasl.password must not hold a NUL"),
    (SASL | {"sasl.jaas.config": "Module required password=geheim"}, "not terminated by semi-colon"),
    (SASL | {"sasl.jaas.config": "M required password=other;"}, "password and sasl.jaas.config are both"),
    (OAUTH, "needs one of sasl.oauthbearer.token, "),
    (OAUTH | {"sasl.oauthbearer.token": "geheim", "sasl.oauthbearer.token.file": "f"}, "needs one of"),
    (OAUTH | {"sasl.oauthbearer.token.endpoint.url": "https://x"}, "needs sasl.oauthbearer.client.id"),
    (OAUTH | {"sasl.oauthbearer.token": "t", "sasl.oauthbearer.extensions": "auth=x"}, "must be name=value"),
])  # fmt: skip
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        read_security(options)
    assert words in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_certificates_are_always_checked_and_host_names_unless_told_not_to() -> None:
    import ssl

    for algorithm, is_checked in ((None, True), ("https", True), ("none", False), ("", False)):
        options = {"security.protocol": "SSL"}
        if algorithm is not None:
            options["ssl.endpoint.identification.algorithm"] = algorithm
        context = read_security(options).tls_context()
        assert context is not None
        assert (context.check_hostname, context.verify_mode) == (is_checked, ssl.CERT_REQUIRED)


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    found = read_security({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with pytest.raises(InvalidOption, match="the TLS certificates cannot be used"):
        found.tls_context()


def test_kafkas_names_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text("x")
    (tmp_path / "ca.pem").write_text("x")
    both, authority = str(tmp_path / "both.pem"), str(tmp_path / "ca.pem")
    java = read_security({
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM_MODULE} username="id" password="geheim" tokenauth="true";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
    })  # fmt: skip
    ours = read_security({
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "id",
        "sasl.password": "geheim",
        "sasl.delegation.token": "true",
        "ssl.ca.location": authority,
        "ssl.certificate.location": both,
    })  # fmt: skip
    assert java == ours
    assert java.is_delegation_token


def test_certificates_may_be_given_as_text() -> None:
    for names in (
        ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"),
        ("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    ):
        found = read_security(TLS | dict(zip(names, "abc", strict=True))).tls
        assert (found.ca_pem, found.certificate_pem, found.key_pem) == ("a", "b", "c")


def test_tokens_come_from_a_setting_a_file_or_an_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "my token"
    file.write_text("from-file")
    ways = ({"token": "given"}, {"token.file": str(file)}, {"token.endpoint.url": file.as_uri()})
    taken = []
    for way in ways:
        found = read_security(OAUTH | {f"sasl.oauthbearer.{name}": value for name, value in way.items()})
        assert found.tokens is not None
        taken.append(found.tokens.take())
    assert taken == ["given", "from-file", "from-file"]
    endpoint = {
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.oauthbearer.client.credentials.client.id": "c",
        "sasl.oauthbearer.client.credentials.client.secret": "geheim",
        "sasl.oauthbearer.extensions": "logicalCluster=x,traceId=7",
    }
    found = read_security(OAUTH | endpoint)
    assert found.extensions == {"logicalCluster": "x", "traceId": "7"}
    assert "geheim" not in repr(found)


def test_options_travel_to_other_processes() -> None:
    for given in (SASL, OAUTH | {"sasl.oauthbearer.token": "t"}):
        found = pickle.loads(pickle.dumps(read_security(given)))
        assert (found.protocol, found.mechanism) == (read_security(given).protocol, found.mechanism)


def test_the_login_of_a_broker_is_that_of_its_jaas_config() -> None:
    jaas = 'PlainLoginModule required username="broker" password="geheim" user_broker="geheim";'
    found = login_of(jaas, "PLAIN", "SASL_SSL", TlsOptions())
    assert (found.username, found.password) == ("broker", "geheim")
    with pytest.raises(InvalidOption, match=r"needs sasl.username"):
        login_of('PlainLoginModule required user_broker="geheim";', "PLAIN", "SASL_SSL", TlsOptions())
