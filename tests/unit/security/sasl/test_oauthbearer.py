"""SASL OAUTHBEARER: the form of its messages, and what becomes of a token that is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Answer, Challenge, Failure, Success, Work
from millrace.security.sasl.oauthbearer import (
    REFUSED,
    OAuthBearerExchange,
    RefusedToken,
    ValidToken,
    Verdict,
    parse_client_message,
)

TOKEN = "good.jwt-token_1"


class Validator:
    """Knows one token."""

    def begin(self, token: str, now_ms: int) -> RefusedToken | Callable[[], Verdict]:
        assert now_ms == 77
        if token == "unknown.key.x":
            return RefusedToken("no key")
        verdict: Verdict = RefusedToken("its signature does not count")
        if token == TOKEN:
            verdict = ValidToken(subject="alice", expires_ms=1000, groups=("ops",), scopes=("s",))
        return lambda: verdict


def respond(exchange: OAuthBearerExchange, token: bytes) -> Answer:
    step = exchange.respond(token, 77)
    return step.then(step.run()) if isinstance(step, Work) else step


def message(token: str = TOKEN, header: str = "n,,", extensions: str = "", scheme: str = "Bearer") -> bytes:
    return f"{header}\x01auth={scheme} {token}\x01{extensions}\x01".encode()


@pytest.mark.parametrize(
    "token",
    [
        message(),
        message(header="n,a=alice,"),
        message(scheme="bearer"),
        message(scheme="BEARER  "),
        message(extensions="traceId=1 2\x01other=x=y\x01"),
        f"n,,\x01a=b\x01auth=Bearer {TOKEN}\x01\x01".encode(),
    ],
)
def test_a_good_token_lets_its_subject_in(token: bytes) -> None:
    identity = Identity(principal=user("alice"), mechanism="OAUTHBEARER", groups=("ops",), expires_ms=1000)
    assert respond(OAuthBearerExchange(Validator()), token) == Success(identity)


def test_extensions_are_read() -> None:
    read = parse_client_message(message(header="n,a=a=2Cb=3Dc,", extensions="one=1\x01two=2\x01"))
    assert (read.token, read.authorization_id, read.extensions) == (TOKEN, "a,b=c", {"one": "1", "two": "2"})
    assert TOKEN not in repr(read)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a$b\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,alice,\x01auth=Bearer x\x01\x01",
        b"n,a=,\x01auth=Bearer x\x01\x01",
        b"n,a=b=c,\x01auth=Bearer x\x01\x01",
        b"n,,\x01a=b\x01\x01",
        b"n,,\x01auth=Bearer x\x01a1=b\x01\x01",
        b"n,,\x01auth=Bearer x\x01a=\x01\x01",
        b"n,,\x01auth=Bearer x\x01a\x01\x01",
        b"n,,\x01auth=Bearer x\x01a=\xc3\xa4\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01auth=Bearer x\x01\x01\x01",
        b"n,,\x01auth=Bearer x\x01\x01rest",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_malformed_messages_fail(token: bytes) -> None:
    answer = respond(OAuthBearerExchange(Validator()), token)
    assert isinstance(answer, Failure)
    assert answer.told is None


@pytest.mark.parametrize("token", ["bad.jwt.x", "unknown.key.x"])
@pytest.mark.parametrize("next_token", [b"\x01", message(), b""])
def test_a_refused_token_is_answered_with_json_and_then_fails(token: str, next_token: bytes) -> None:
    exchange = OAuthBearerExchange(Validator())
    assert respond(exchange, message(token)) == Challenge(REFUSED.encode())
    failure = respond(exchange, next_token)
    assert isinstance(failure, Failure)
    assert failure.told == '{"status":"invalid_token"}'
    assert isinstance(respond(exchange, message()), Failure)


def test_an_authorization_id_of_another_user_fails() -> None:
    """S9."""
    answer = respond(OAuthBearerExchange(Validator()), message(header="n,a=bob,"))
    assert isinstance(answer, Failure)
    assert answer.told == (
        "Authentication failed: Client requested an authorization id (bob) that is different from the "
        "token's principal name (alice)"
    )


def test_there_is_one_login_in_an_exchange() -> None:
    exchange = OAuthBearerExchange(Validator())
    assert isinstance(respond(exchange, message()), Success)
    assert isinstance(respond(exchange, message()), Failure)


@given(st.text("nya,=Bearuth x.\x01-", max_size=60))
def test_every_text_is_read_or_refused(text: str) -> None:
    assert isinstance(respond(OAuthBearerExchange(Validator()), text.encode()), Failure | Challenge)


@given(
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0\x01"), max_size=10),
    extensions=st.dictionaries(
        st.text("abcXYZ", min_size=1).filter(lambda key: key != "auth"),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1),
        max_size=4,
    ),
)
def test_what_is_written_is_read_back(name: str, extensions: dict[str, str]) -> None:
    header = f"n,a={name.replace('=', '=3D').replace(',', '=2C')}," if name else "n,,"
    pairs = "".join(f"{key}={value}\x01" for key, value in extensions.items())
    read = parse_client_message(message(header=header, extensions=pairs))
    assert (read.token, read.authorization_id, read.extensions) == (TOKEN, name, extensions)
