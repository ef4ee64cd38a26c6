"""SCRAM as RFC 5802 and RFC 7677 have it, against another implementation, and against those who cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.override import override
from millrace.security.credentials.scram import Decoys, ScramCredential, ScramMechanism, derive_credential
from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Answer, Challenge, Failure, Success, Work
from millrace.security.sasl.plain import OTHER_AUTHORIZATION_ID
from millrace.security.sasl.scram import ScramExchange, TokenLogin
from tests.unit.security.sasl.scram_store import (
    PASSWORDS,
    TOKEN_EXPIRES_MS,
    TOKEN_ID,
    TOKEN_SECRET,
    Store,
    credential_of,
)

SHA_256, SHA_512 = ScramMechanism
MECHANISMS = [SHA_256, SHA_512]


def exchange_of(
    mechanism: ScramMechanism = SHA_256, store: Store | None = None, seed: int = 1
) -> ScramExchange:
    return ScramExchange(mechanism, store or Store(), Decoys(b"key"), random.Random(seed))


def respond(exchange: ScramExchange, text: str, now_ms: int = 0) -> Answer:
    step = exchange.respond(text.encode(), now_ms)
    return step.then(step.run()) if isinstance(step, Work) else step


def challenge(exchange: ScramExchange, text: str) -> str:
    answer = respond(exchange, text)
    assert isinstance(answer, Challenge), answer
    return answer.data.decode()


def final_message(
    mechanism: ScramMechanism,
    first: str,
    server_first: str,
    password: str,
    *,
    channel: str = "biws",
    nonce: str | None = None,
    extensions: str = "",
) -> str:
    """What a client that knows the password answers, by the formulas of the RFC."""
    attributes = dict(part.split("=", 1) for part in server_first.split(","))
    digest = mechanism.digest
    salt, iterations = base64.b64decode(attributes["s"]), int(attributes["i"])
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    bare = first.split(",", 2)[2]
    without_proof = f"c={channel},r={nonce or attributes['r']}{extensions}"
    signature = hmac.digest(stored_key, f"{bare},{server_first},{without_proof}".encode(), digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}"


class OneUser(Store):
    """The user of the RFC's example."""

    @override
    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
        return derive_credential(mechanism, "pencil", salt=salt, iterations=4096) if name == "user" else None


def test_the_example_of_the_rfc(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7677, section 3, to the byte."""
    monkeypatch.setattr(
        "millrace.security.sasl.scram.random_text", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    exchange = exchange_of(store=OneUser())
    assert challenge(exchange, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    answer = respond(
        exchange,
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert answer == Success(
        Identity(principal=user("user"), mechanism="SCRAM-SHA-256"),
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "a,b=c"])
def test_another_implementation_logs_in_and_believes_us(mechanism: ScramMechanism, name: str) -> None:
    client = scramp.ScramClient([mechanism.label], name, PASSWORDS[name])
    exchange = exchange_of(mechanism)
    client.set_server_first(challenge(exchange, client.get_client_first()))
    answer = respond(exchange, client.get_client_final())
    assert isinstance(answer, Success)
    assert answer.identity == Identity(principal=user(name), mechanism=mechanism.label)
    client.set_server_final(answer.data.decode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_another_implementation_with_a_wrong_password_fails(mechanism: ScramMechanism) -> None:
    client = scramp.ScramClient([mechanism.label], "alice", "wrong")
    exchange = exchange_of(mechanism)
    client.set_server_first(challenge(exchange, client.get_client_first()))
    assert respond(exchange, client.get_client_final()) == Failure("Invalid client credentials")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "first, channel, extensions",
    [
        ("n,,n=alice,r=abc", "biws", ""),
        ("n,a=alice,n=alice,r=abc", base64.b64encode(b"n,a=alice,").decode(), ""),
        ("n,,n=alice,r=abc,x=y,foo=bar=baz", "biws", ",z=1"),
        ("n,,n=alice,r=abc,tokenauth=false", "biws", ""),
    ],
)
def test_a_proof_over_what_was_really_said_counts(
    mechanism: ScramMechanism, first: str, channel: str, extensions: str
) -> None:
    exchange = exchange_of(mechanism)
    server_first = challenge(exchange, first)
    final = final_message(mechanism, first, server_first, "pencil", channel=channel, extensions=extensions)
    assert isinstance(respond(exchange, final), Success)


def test_names_may_be_any_text() -> None:
    exchange = exchange_of()
    first = "n,,n=Grüße,r=abc"
    answer = respond(exchange, final_message(SHA_256, first, challenge(exchange, first), "Straße"))
    assert isinstance(answer, Success)
    assert answer.identity.principal == user("Grüße")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_is_challenged_like_a_known_one_and_fails_like_a_wrong_password(
    mechanism: ScramMechanism,
) -> None:
    answers = []
    for name in ("alice", "nobody"):
        exchange = exchange_of(mechanism)
        first = f"n,,n={name},r=abc"
        server_first = challenge(exchange, first)
        assert server_first.endswith(",i=4096")
        answers.append(respond(exchange, final_message(mechanism, first, server_first, "wrong")))
        # The same salt every time, or asking twice would tell.
        assert challenge(exchange_of(mechanism), first) == server_first
    assert answers[0] == answers[1] == Failure("Invalid client credentials")


def test_even_a_right_proof_does_not_make_anybody_a_user_who_is_not_there() -> None:
    class KnownDecoys(Decoys):
        @override
        def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
            return credential_of(mechanism, "pencil")

    exchange = ScramExchange(SHA_256, Store(), KnownDecoys(b"key"), random.Random(1))
    first = "n,,n=nobody,r=abc"
    final = final_message(SHA_256, first, challenge(exchange, first), "pencil")
    assert respond(exchange, final) == Failure("Invalid client credentials")


def test_a_credential_of_too_few_iterations_is_no_credential() -> None:
    class Weak(Store):
        @override
        def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
            return derive_credential(mechanism, "pencil", salt=b"salt", iterations=4095)

    exchange = exchange_of(store=Weak())
    first = "n,,n=alice,r=abc"
    server_first = challenge(exchange, first)
    assert server_first.endswith("i=4096")
    assert isinstance(respond(exchange, final_message(SHA_256, first, server_first, "pencil")), Failure)


def test_another_nonce_in_the_final_message_fails() -> None:
    """S8: neither the client's nonce alone, nor one with something behind it."""
    first = "n,,n=alice,r=abc"
    for change in (lambda nonce: nonce[:-1], lambda nonce: nonce + "x", lambda _: "abc", lambda _: ""):
        exchange = exchange_of()
        server_first = challenge(exchange, first)
        nonce = server_first.split(",")[0][2:]
        final = final_message(SHA_256, first, server_first, "pencil", nonce=change(nonce) or "")
        if not change(nonce):
            final = final.replace(f"r={nonce}", "r=")
        assert isinstance(respond(exchange, final), Failure)


def test_a_final_message_that_was_overheard_is_worth_nothing_in_another_exchange() -> None:
    """S8."""
    first = "n,,n=alice,r=abc"
    overheard = final_message(SHA_256, first, challenge(exchange_of(seed=1), first), "pencil")
    exchange = exchange_of(seed=2)
    challenge(exchange, first)
    assert respond(exchange, overheard) == Failure("Invalid client nonce in the final client message.")


def test_no_message_counts_twice() -> None:
    first = "n,,n=alice,r=abc"
    exchange = exchange_of()
    server_first = challenge(exchange, first)
    final = final_message(SHA_256, first, server_first, "pencil")
    assert isinstance(respond(exchange, final), Success)
    assert isinstance(respond(exchange, final), Failure)
    # Nor after a guess that failed.
    exchange = exchange_of()
    server_first = challenge(exchange, first)
    assert isinstance(respond(exchange, final_message(SHA_256, first, server_first, "wrong")), Failure)
    assert isinstance(respond(exchange, final_message(SHA_256, first, server_first, "pencil")), Failure)


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_an_authorization_id_of_another_user_fails_whether_the_user_exists_or_not(name: str) -> None:
    """S9."""
    assert respond(exchange_of(), f"n,a=bob,n={name},r=abc") == Failure(
        "authorization id of another user", OTHER_AUTHORIZATION_ID
    )


def test_the_channel_binding_is_that_of_the_first_message() -> None:
    first = "n,,n=alice,r=abc"
    exchange = exchange_of()
    final = final_message(SHA_256, first, challenge(exchange, first), "pencil", channel="eSws")
    assert isinstance(respond(exchange, final), Failure)


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n",
        "n,",
        "n,,",
        "y,,n=alice,r=abc",
        "p=tls-unique,,n=alice,r=abc",
        "n,alice,n=alice,r=abc",
        "n,a=,n=alice,r=abc",
        "n,,m=x,n=alice,r=abc",
        "n,,n=alice",
        "n,,n=,r=abc",
        "n,,n=alice,r=",
        "n,,n=alice,r=a c",
        "n,,n=alice,r=ä",
        "n,,r=abc,n=alice",
        "n,,n=al=ice,r=abc",
        "n,,n=al=2cice,r=abc",
        "n,,n=alice,r=abc,",
        "n,,n=alice,r=abc,x",
        "n,,n=alice,r=abc,m=x",
        "n,,n=alice,r=abc,1=x",
        "n,,n=al\0ice,r=abc",
    ],
)
def test_malformed_first_messages_fail(first: str) -> None:
    answer = respond(exchange_of(), first)
    assert isinstance(answer, Failure)
    assert answer.told is None


def test_malformed_final_messages_fail() -> None:
    first = "n,,n=alice,r=abc"
    for damage in (
        lambda text: "",
        lambda text: text.replace("c=biws,", ""),
        lambda text: text.replace("c=", "d="),
        lambda text: text.replace(",r=", ",s="),
        lambda text: text.rpartition(",")[0],
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text.replace(",p=", ",p=!"),
        lambda text: text.replace(",p=", ",x,p="),
        lambda text: text.replace(",p=", ",m=1,p="),
        lambda text: text + ",x=y",
        lambda text: text.partition(",p=")[0] + ",p=",
        lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(b"x" * 31).decode(),
        lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(b"x" * 33).decode(),
    ):
        exchange = exchange_of()
        final = final_message(SHA_256, first, challenge(exchange, first), "pencil")
        assert isinstance(respond(exchange, damage(final)), Failure), damage(final)
    exchange = exchange_of()
    challenge(exchange, first)
    assert isinstance(exchange.respond(b"\xff", 0), Failure)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_delegation_token_logs_its_owner_in(mechanism: ScramMechanism) -> None:
    store = Store()
    first = f"n,,n={TOKEN_ID},r=abc,tokenauth=True"
    for is_first_time in (True, False):
        exchange = exchange_of(mechanism, store)
        step = exchange.respond(first.encode(), 0)
        # Deriving its credential is work for a thread, and done once.
        assert isinstance(step, Work) == is_first_time
        answer = step.then(step.run()) if isinstance(step, Work) else step
        assert isinstance(answer, Challenge)
        final = final_message(mechanism, first, answer.data.decode(), TOKEN_SECRET)
        assert respond(exchange, final) == Success(
            Identity(
                principal=user("owner"), mechanism=mechanism.label, is_token=True, expires_ms=TOKEN_EXPIRES_MS
            ),
            _server_signature(mechanism, first, answer.data.decode(), final),
        )


def _server_signature(mechanism: ScramMechanism, first: str, server_first: str, final: str) -> bytes:
    signed = f"{first.split(',', 2)[2]},{server_first},{final.rpartition(',')[0]}"
    key = credential_of(mechanism, TOKEN_SECRET).server_key
    return b"v=" + base64.b64encode(hmac.digest(key, signed.encode(), mechanism.digest))


@pytest.mark.parametrize(
    "first, now_ms",
    [
        ("n,,n=token-2,r=abc,tokenauth=true", 0),
        (f"n,,n={TOKEN_ID},r=abc,tokenauth=true", TOKEN_EXPIRES_MS + 1),
        # A user is no token, and a token is no user.
        ("n,,n=alice,r=abc,tokenauth=true", 0),
        (f"n,,n={TOKEN_ID},r=abc", 0),
    ],
)
def test_tokens_that_do_not_count_fail_like_a_wrong_password(first: str, now_ms: int) -> None:
    exchange = exchange_of()
    answer = respond(exchange, first, now_ms)
    assert isinstance(answer, Challenge)
    for password in (TOKEN_SECRET, "pencil"):
        final = final_message(SHA_256, first, answer.data.decode(), password)
        assert isinstance(respond(exchange, final), Failure)


def test_nothing_shows_a_key() -> None:
    exchange = exchange_of()
    challenge(exchange, "n,,n=alice,r=abc")
    keys = credential_of(SHA_256, "pencil")
    shown = repr(exchange) + repr(vars(exchange)) + repr(TokenLogin(user("a"), 1, keys))
    for key in (keys.stored_key, keys.server_key):
        assert repr(key)[2:-1] not in shown
        assert key.hex() not in shown


TEXTS = st.text("ncrpbimsa=,2CD3abyws AZ09+/\0ü", max_size=60)


@given(TEXTS, TEXTS)
def test_texts_alone_let_nobody_in(first: str, final: str) -> None:
    exchange = exchange_of()
    assert isinstance(respond(exchange, first), Challenge | Failure)
    assert isinstance(respond(exchange, final), Failure)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=10))
def test_every_name_can_be_escaped(name: str) -> None:
    class Anybody(Store):
        @override
        def credential(self, mechanism: ScramMechanism, found: str) -> ScramCredential | None:
            assert found == name
            return credential_of(mechanism, "pencil")

    exchange = exchange_of(store=Anybody())
    first = f"n,,n={name.replace('=', '=3D').replace(',', '=2C')},r=abc"
    answer = respond(exchange, final_message(SHA_256, first, challenge(exchange, first), "pencil"))
    assert isinstance(answer, Success)
    assert answer.identity.principal.name == name
