"""One translation of client properties: Java's names and librdkafka's mean the same."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaException

from millrace.client.errors import InvalidOption
from millrace.client.properties import translated
from millrace.client.property_names import OF_JAVA_ALONE, OURS, SAME_HERE, TRANSLATED

PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}


def jaas(module: str, **options: str) -> str:
    given = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required {given};"


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
def test_a_jaas_entry_holds_user_and_password(module: str) -> None:
    found = translated(SASL | {"sasl.jaas.config": jaas(module, username="ada", password="geheim")})
    assert found.values == SASL | {"sasl.username": "ada", "sasl.password": "geheim"}
    security = found.security()
    assert (security.mechanism, security.username, security.password) == ("SCRAM-SHA-512", "ada", "geheim")
    assert "geheim" not in repr(found)
    assert found.has_secrets
    assert found.is_secure


def test_an_oauth_entry_holds_the_client_and_its_extensions() -> None:
    entry = jaas(
        "oauthbearer.OAuthBearerLoginModule", clientId="c", clientSecret="s", scope="w", extension_pool="p"
    )
    found = translated(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
            "sasl.login.callback.handler.class": "of.Java",
            "sasl.jaas.config": entry,
        }
    )
    assert found.values["sasl.oauthbearer.client.id"] == "c"
    assert found.values["sasl.oauthbearer.client.secret"] == "s"
    assert found.values["sasl.oauthbearer.scope"] == "w"
    assert found.values["sasl.oauthbearer.extensions"] == "pool=p"


def test_pem_stores_of_java_are_files_of_librdkafka(tmp_path: Path) -> None:
    trusted, own = tmp_path / "ca.pem", tmp_path / "own.pem"
    trusted.write_text(PEM)
    own.write_text(PEM)
    found = translated(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "ssl.key.password": "tresor",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3",
        }
    )
    assert found.values == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(trusted),
        "ssl.certificate.location": str(own),
        "ssl.key.location": str(own),
        "ssl.key.password": "tresor",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_pem_in_the_file_itself() -> None:
    found = translated(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": PEM,
            "ssl.keystore.certificate.chain": PEM,
            "ssl.keystore.key": "KEY",
        }
    )
    assert found.values == {
        "security.protocol": "SSL",
        "ssl.ca.pem": PEM,
        "ssl.certificate.pem": PEM,
        "ssl.key.pem": "KEY",
    }
    assert found.has_secrets


def test_a_pkcs12_store_is_for_librdkafka_alone(tmp_path: Path) -> None:
    store = tmp_path / "own.p12"
    store.write_bytes(b"0\x82\x01\x00")
    found = translated({"security.protocol": "SSL", "ssl.keystore.location": str(store)})
    assert found.has_pkcs12
    assert found.for_librdkafka()["ssl.keystore.location"] == str(store)
    with pytest.raises(InvalidOption, match=r"openssl pkcs12 -in"):
        found.security()


@pytest.mark.parametrize("kind", ["keystore", "truststore"])
def test_a_store_of_java_is_refused_with_the_way_to_a_pem_file(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "own.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\x00")
    with pytest.raises(InvalidOption, match="keytool -importkeystore"):
        translated({"security.protocol": "SSL", f"ssl.{kind}.location": str(store)})
    with pytest.raises(InvalidOption, match="No such file"):
        translated({"security.protocol": "SSL", f"ssl.{kind}.location": str(store) + "x"})


def test_delegation_tokens_are_for_our_own_connections() -> None:
    entry = jaas("scram.ScramLoginModule", username="id", password="mac", tokenauth="true")
    found = translated(SASL | {"sasl.jaas.config": entry})
    assert found.values["sasl.delegation.token"] == "true"
    with pytest.raises(InvalidOption, match="librdkafka, which this command uses, has no such login"):
        found.for_librdkafka()


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("sasl.mechansim", "sasl.mechanism"),
        ("securityprotocol", "security.protocol"),
        ("ssl.truststore.certificate", "ssl.truststore.certificates"),
        ("ssl.ca", "ssl.ca.pem"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{name}: no client property .* did you mean {nearest}"):
        translated({name: "geheim"})


def test_a_line_that_may_be_a_secret_is_not_shown() -> None:
    with pytest.raises(InvalidOption, match=r"^a line: no client property is called so$"):
        translated({"pa55-w0rd!": ""})


@pytest.mark.parametrize(
    "properties, words",
    [
        (SASL | {"sasl.jaas.config": "geheim"}, "sasl.jaas.config: "),
        (SASL | {"sasl.jaas.config": jaas("x.Krb5LoginModule")}, "Krb5LoginModule is not supported"),
        (SASL | {"sasl.jaas.config": jaas("plain.PlainLoginModule", username="u")}, "password is missing"),
        ({"security.protocol": "sasl_ssl"}, "sasl.mechanism is missing"),
        (SASL | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanism and sasl.mechanisms are both given and differ"),
        (
            SASL
            | {
                "sasl.username": "other",
                "sasl.jaas.config": jaas("plain.PlainLoginModule", username="u", password="geheim"),
            },
            "sasl.username is given twice",
        ),
    ],
)
def test_what_cannot_be_is_refused_without_its_value(properties: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        translated(properties)
    assert words in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_librdkafka_knows_every_name_that_is_said_to_be_its_own() -> None:
    for name in sorted(SAME_HERE):
        # The value is wrong for most, and the second name ends the attempt for the others.
        with pytest.raises(KafkaException) as refused:
            confluent_kafka.admin.AdminClient({name: "\n", "no.such": "name"})
        assert f'No such configuration property: "{name}"' not in str(refused.value)


def test_no_name_is_of_two_kinds() -> None:
    kinds = (SAME_HERE, TRANSLATED, OF_JAVA_ALONE, OURS)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))
