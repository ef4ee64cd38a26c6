"""The settings of TLS: nothing of a key or a password is shown."""

from __future__ import annotations

from millrace.security.mapping_rules import parse_mapping_rules
from millrace.security.tls import KeyStore, TlsSettings, TrustStore


def test_no_secret_is_shown() -> None:
    settings = TlsSettings(
        keys=KeyStore(location="/k.pem", password="hunter2", key="hunter2", key_password="hunter2"),
        trust=TrustStore(certificates="hunter2", password="hunter2"),
        rules=parse_mapping_rules("DEFAULT"),
    )
    assert "/k.pem" in repr(settings)
    assert "hunter2" not in repr(settings)


def test_a_store_is_given_by_a_file_or_by_its_content() -> None:
    assert not KeyStore().is_given
    assert KeyStore(location="/k.pem").is_given
    assert KeyStore(key="k", chain="c").is_given
    assert not TrustStore().is_given
    assert TrustStore(location="/t.pem").is_given
    assert TrustStore(certificates="c").is_given
