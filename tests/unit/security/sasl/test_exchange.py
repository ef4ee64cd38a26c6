"""What mechanisms answer shows no token."""

from __future__ import annotations

from millrace.security.principals import NOBODY
from millrace.security.sasl.exchange import Challenge, Failure, Success, Work


def test_answers_do_not_show_what_is_sent() -> None:
    assert repr(Challenge(b"topsecret")) == "Challenge()"
    assert "topsecret" not in repr(Success(NOBODY, b"topsecret"))
    assert repr(Work(lambda: "topsecret", lambda _: Failure("no"))) == "Work()"
    assert Failure("why").told is None
