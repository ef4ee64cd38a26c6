"""Options of security, and the client's half of SASL."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.errors import BrokerRefused, InvalidOption, LoginFailed
from millrace.client.security import MECHANISMS, SaslClient, SecurityOptions, read_security

SASL = {"security.protocol": "sasl_plaintext", "sasl.username": "u", "sasl.password": "geheim"}


def client(mechanism: str, username: str = "user", password: str = "pencil", nonce: str = "n") -> SaslClient:
    return SaslClient(
        SecurityOptions(protocol="SASL_PLAINTEXT", mechanism=mechanism, username=username, password=password),
        nonce,
    )


def test_without_options_connections_are_plain() -> None:
    found = read_security({"subscribe": "a"})
    assert (found, found.uses_tls, found.uses_sasl) == (SecurityOptions(), False, False)
    assert found.tls_context() is None


def test_names_may_carry_the_prefix_of_kafka() -> None:
    found = read_security({f"kafka.{name}": value for name, value in SASL.items()})
    assert (found.protocol, found.mechanism, found.username) == ("SASL_PLAINTEXT", "PLAIN", "u")
    assert found == read_security(SASL)


def test_secrets_are_in_no_representation() -> None:
    found = read_security(SASL | {"ssl.key.password": "tresor"})
    assert (found.password, found.key_password) == ("geheim", "tresor")
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
    with pytest.raises(InvalidOption, match="the TLS files cannot be used"):
        found.tls_context()


def test_plain_says_name_and_password_and_is_done() -> None:
    plain = client("PLAIN")
    assert plain.first() == b"\0user\0pencil"
    assert plain.answer(b"") is None


def test_scram_answers_as_the_example_of_rfc_7677_does() -> None:
    scram = client("SCRAM-SHA-256", nonce="rOprNGfwEbeRWgbNEkqO")
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert scram.answer(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


class Broker:
    """The other half of SCRAM, which knows only what a broker stores."""

    def __init__(self, mechanism: str, password: str) -> None:
        self.algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        salted = hashlib.pbkdf2_hmac(self.algorithm, password.encode(), b"salt", 64)
        client_key = hmac.digest(salted, b"Client Key", self.algorithm)
        self.stored_key = hashlib.new(self.algorithm, client_key).digest()
        self.server_key = hmac.digest(salted, b"Server Key", self.algorithm)
        self.names: list[str] = []

    def challenge(self, first: bytes) -> bytes:
        self.bare = first.removeprefix(b"n,,").decode()
        name, nonce = self.bare.split(",")
        self.names.append(name.removeprefix("n=").replace("=2C", ",").replace("=3D", "="))
        salt = base64.b64encode(b"salt").decode()
        self.said = f"{nonce}more,s={salt},i=64"
        return self.said.encode()

    def verdict(self, proved: bytes) -> bytes | None:
        """The signature, or None for a wrong proof."""
        without_proof, _, proof = proved.decode().rpartition(",p=")
        message = f"{self.bare},{self.said},{without_proof}".encode()
        signature = hmac.digest(self.stored_key, message, self.algorithm)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.algorithm, key).digest() != self.stored_key:
            return None
        return b"v=" + base64.b64encode(hmac.digest(self.server_key, message, self.algorithm))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=40)
@given(st.sampled_from(MECHANISMS[1:]), TEXTS, TEXTS)
def test_any_name_and_password_are_proved_to_a_broker(mechanism: str, name: str, password: str) -> None:
    broker, scram = Broker(mechanism, password), client(mechanism, name, password)
    proof = scram.answer(broker.challenge(scram.first()))
    assert proof is not None
    verdict = broker.verdict(proof)
    assert verdict is not None
    assert broker.names == [name]
    assert scram.answer(verdict) is None


def test_a_wrong_password_proves_nothing_and_a_broker_without_the_hash_is_found_out() -> None:
    broker, scram = Broker("SCRAM-SHA-512", "right"), client("SCRAM-SHA-512", password="wrong")
    proof = scram.answer(broker.challenge(scram.first()))
    assert proof is not None
    assert broker.verdict(proof) is None
    with pytest.raises(LoginFailed, match="could not prove that it knows"):
        scram.answer(b"v=" + base64.b64encode(b"x" * 64))


@pytest.mark.parametrize("challenge, words", [
    (b"r=other,s=c2FsdA==,i=64", "nonce does not continue ours"),
    (b"r=n,s=c2FsdA==,i=64", "nonce does not continue ours"),
    (b"r=nm,s=c2FsdA==,i=99999999", "asks for 99999999 SCRAM iterations"),
    (b"r=nm,s=c2FsdA==,i=0", "asks for 0 SCRAM iterations"),
    (b"r=nm,s=c2FsdA==,i=many", "is malformed"),
    (b"r=nm,i=64", "is malformed"),
    (b"r=nm,s=x,i=64", "is malformed"),
    (b"\xff", "is malformed"),
])  # fmt: skip
def test_a_challenge_that_no_honest_broker_sends_is_refused(challenge: bytes, words: str) -> None:
    with pytest.raises(LoginFailed, match=words):
        client("SCRAM-SHA-256").answer(challenge)


def test_a_brokers_own_reason_is_told() -> None:
    with pytest.raises(BrokerRefused, match="SCRAM: invalid-proof") as refused:
        client("SCRAM-SHA-256").answer(b"e=invalid-proof")
    assert refused.value.code == 58
