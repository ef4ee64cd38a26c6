"""SASL PLAIN: three parts, the right password, and nobody else's name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.credentials.passwords import ConfiguredUsers
from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Answer, Failure, Step, Success, Work
from millrace.security.sasl.plain import OTHER_AUTHORIZATION_ID, PlainExchange

USERS = ConfiguredUsers({"alice": "secret", "bob": "other"})
INVALID = "Authentication failed: Invalid username or password"


class InAThread:
    """The same users, checked by work for a thread."""

    def check(self, name: str, password: str) -> Callable[[], bool]:
        return lambda: USERS.check(name, password)


def finished(step: Step) -> Answer:
    return step.then(step.run()) if isinstance(step, Work) else step


@pytest.mark.parametrize("passwords", [USERS, InAThread()])
@pytest.mark.parametrize(
    "token, expected",
    [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        (b"bob\0alice\0secret", OTHER_AUTHORIZATION_ID),
        (b"\0alice\0other", INVALID),
        (b"\0nobody\0secret", INVALID),
        # Whose name it is, is not even looked at without the password.
        (b"bob\0alice\0wrong", INVALID),
        (b"\0alice", None),
        (b"alice\0secret", None),
        (b"", None),
        (b"\0alice\0secret\0", None),
        (b"\0alice\0sec\0ret", None),
        (b"\0\0secret", None),
        (b"\0alice\0", None),
        (b"\0al\xffice\0secret", None),
    ],
)
def test_who_gets_in(token: bytes, expected: str | None, passwords: ConfiguredUsers | InAThread) -> None:
    answer = finished(PlainExchange(passwords).respond(token, 0))
    if isinstance(answer, Success):
        assert answer == Success(Identity(principal=user(str(expected)), mechanism="PLAIN"))
    else:
        assert isinstance(answer, Failure)
        assert answer.told == expected
        assert "sec" not in answer.reason


def test_there_is_one_token_in_an_exchange() -> None:
    exchange = PlainExchange(USERS)
    assert isinstance(exchange.respond(b"\0alice\0wrong", 0), Failure)
    assert isinstance(exchange.respond(b"\0alice\0secret", 0), Failure)


def test_work_does_not_show_the_password() -> None:
    step = PlainExchange(InAThread()).respond(b"\0alice\0secret", 0)
    assert isinstance(step, Work)
    assert "secret" not in repr(step)


@given(st.binary(max_size=40))
def test_bytes_alone_let_nobody_in(token: bytes) -> None:
    assert isinstance(PlainExchange(USERS).respond(token, 0), Failure)
