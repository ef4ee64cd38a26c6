"""The client's half of SASL, against the RFCs' examples and against the broker's half."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.errors import BrokerRefused, LoginFailed
from millrace.client.sasl import MECHANISMS, SCRAM, SaslClient, sasl_client
from millrace.client.security import SecurityOptions
from millrace.client.tokens import TokenSource
from millrace.security.credentials.scram import Decoys, ScramCredential, ScramMechanism, derive_credential
from millrace.security.principals import user
from millrace.security.sasl.exchange import Challenge, Failure, Step, Success
from millrace.security.sasl.scram import ScramExchange, TokenLogin


def options(mechanism: str, username: str, password: str, *, is_token: bool = False) -> SecurityOptions:
    return SecurityOptions(
        protocol="SASL_PLAINTEXT",
        mechanism=mechanism,
        username=username,
        password=password,
        is_delegation_token=is_token,
    )


def client(mechanism: str, username: str = "user", password: str = "pencil", nonce: str = "n") -> SaslClient:
    return sasl_client(options(mechanism, username, password), nonce)


def test_plain_says_name_and_password_and_is_done() -> None:
    plain = client("PLAIN")
    assert (plain.mechanism, plain.is_quick) == ("PLAIN", True)
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


class Users:
    """One user of a broker, and one delegation token."""

    def __init__(self, mechanism: ScramMechanism, name: str, password: str) -> None:
        self._name = name
        self._credential = derive_credential(mechanism, password, salt=b"salt", iterations=4_096)

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        return self._credential if name == self._name else None

    def token(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        if token_id != self._name:
            return None
        return TokenLogin(user("owner"), now_ms + 1, self._credential)

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        raise AssertionError("it is known")


def broker(mechanism: str, name: str, password: str) -> ScramExchange:
    kind = SCRAM[mechanism]
    return ScramExchange(kind, Users(kind, name, password), Decoys(b"key"), random.Random(1))


def say(exchange: ScramExchange, message: bytes | None) -> Step:
    assert message is not None
    return exchange.respond(message, 1)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=30)
@given(st.sampled_from(list(SCRAM)), TEXTS, TEXTS, st.booleans())
def test_any_name_and_password_are_proved_to_a_broker(
    mechanism: str, name: str, password: str, is_token: bool
) -> None:
    scram, exchange = (
        sasl_client(options(mechanism, name, password, is_token=is_token)),
        broker(mechanism, name, password),
    )
    challenge = say(exchange, scram.first())
    assert isinstance(challenge, Challenge)
    verdict = say(exchange, scram.answer(challenge.data))
    assert isinstance(verdict, Success)
    assert verdict.identity.principal.name == ("owner" if is_token else name)
    assert verdict.identity.is_token == is_token
    assert scram.answer(verdict.data) is None


def test_a_wrong_password_proves_nothing_and_a_broker_without_the_hash_is_found_out() -> None:
    exchange, scram = broker("SCRAM-SHA-512", "user", "right"), client("SCRAM-SHA-512", password="wrong")
    challenge = say(exchange, scram.first())
    assert isinstance(challenge, Challenge)
    assert isinstance(say(exchange, scram.answer(challenge.data)), Failure)
    with pytest.raises(LoginFailed, match="could not prove that it knows"):
        scram.answer(b"v=" + base64.b64encode(b"x" * 64))


@pytest.mark.parametrize("challenge, words", [
    (b"r=other,s=c2FsdA==,i=4096", "nonce does not continue ours"),
    (b"r=n,s=c2FsdA==,i=4096", "nonce does not continue ours"),
    (b"r=nm,s=c2FsdA==,i=99999999", "asks for 99999999 SCRAM iterations"),
    (b"r=nm,s=c2FsdA==,i=4095", "asks for 4095 SCRAM iterations"),
    (b"r=nm,s=c2FsdA==,i=0", "asks for 0 SCRAM iterations"),
    (b"r=nm,s=c2FsdA==,i=many", "is malformed"),
    (b"r=nm,i=4096", "is malformed"),
    (b"r=nm,s=x,i=4096", "is malformed"),
    (b"\xff", "is malformed"),
])  # fmt: skip
def test_a_challenge_that_no_honest_broker_sends_is_refused(challenge: bytes, words: str) -> None:
    with pytest.raises(LoginFailed, match=words):
        client("SCRAM-SHA-256").answer(challenge)


def test_a_brokers_own_reason_is_told() -> None:
    with pytest.raises(BrokerRefused, match="SCRAM: invalid-proof") as refused:
        client("SCRAM-SHA-256").answer(b"e=invalid-proof")
    assert refused.value.code == 58


def bearer(extensions: dict[str, str] | None = None) -> SaslClient:
    return sasl_client(
        SecurityOptions(
            protocol="SASL_SSL",
            mechanism="OAUTHBEARER",
            tokens=TokenSource(token="a.b-c.d_e"),
            extensions=extensions or {},
        )
    )


def test_a_token_is_sent_in_the_form_of_rfc_7628() -> None:
    assert bearer().first() == b"n,,\x01auth=Bearer a.b-c.d_e\x01\x01"
    assert bearer({"logicalCluster": "x", "traceId": "7"}).first() == (
        b"n,,\x01auth=Bearer a.b-c.d_e\x01logicalCluster=x\x01traceId=7\x01\x01"
    )
    assert bearer().answer(b"") is None


def test_a_refused_token_is_acknowledged_before_the_broker_fails() -> None:
    oauth = bearer()
    oauth.first()
    assert oauth.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(LoginFailed, match="refused the token"):
        oauth.answer(b"")


def test_mechanisms_are_those_that_brokers_have() -> None:
    assert MECHANISMS == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
