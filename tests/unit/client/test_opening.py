"""What is said first on a connection, asked and answered without one."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.errors import BrokerRefused, LoginFailed, UnsupportedBroker
from millrace.client.opening import Login, ServedVersions, ask_versions, open_with
from millrace.client.questions import Questions, Work
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse

VERSIONS = ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=2, max_version=9)])
LOGIN = SecurityOptions(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="geheim")


def answered(questions: Questions[Any], *answers: Any) -> tuple[list[Any], Any]:
    """What was asked, each question after the answer to the one before; and what came of it."""
    asked: list[Any] = []
    left = list(answers)
    try:
        step = next(questions)
        while isinstance(step, Work) or left:
            if isinstance(step, Work):
                step = questions.send(step.run())
                continue
            asked.append(step)
            step = questions.send(left.pop(0))
        asked.append(step)
    except StopIteration as end:
        return asked, end.value
    raise AssertionError(f"a question is left: {asked[-1]}")


def test_versions_are_asked_in_the_name_of_the_software() -> None:
    (asked,), served = answered(ask_versions("b:1", "me"), VERSIONS)
    assert (asked.api_key, asked.version) == (ApiKey.API_VERSIONS, 3)
    assert (asked.message.client_software_name, asked.message.client_software_version) == ("me", "1")
    assert served.newest(3, 0, 12) == 9


def test_a_broker_that_does_not_tell_its_versions_is_named() -> None:
    with pytest.raises(BrokerRefused, match=r"versions of b:1: .*\(UNSUPPORTED_VERSION\)"):
        answered(ask_versions("b:1", "me"), ApiVersionsResponse(error_code=35))


@pytest.mark.parametrize("at_least, at_most, found", [(0, 12, 9), (2, 5, 5), (9, 9, 9), (0, 2, 2)])
def test_the_newest_version_that_both_know_is_chosen(at_least: int, at_most: int, found: int) -> None:
    assert ServedVersions("b:1", {3: (2, 9)}).newest(3, at_least, at_most) == found


@pytest.mark.parametrize("api_key, bounds, words", [
    (3, (10, 12), "Metadata is needed in a version of 10 to 12; b:1 serves versions 2 to 9"),
    (3, (0, 1), "Metadata is needed in a version of 0 to 1; b:1 serves versions 2 to 9"),
    (1, (0, 17), "Fetch is needed in a version of 0 to 17; b:1 does not serve it"),
])  # fmt: skip
def test_a_broker_without_a_common_version_is_refused(
    api_key: int, bounds: tuple[int, int], words: str
) -> None:
    with pytest.raises(UnsupportedBroker, match=words):
        ServedVersions("b:1", {3: (2, 9)}).newest(api_key, *bounds)


def test_a_login_follows_where_one_is_wanted() -> None:
    asked, _ = answered(open_with("b:1", "me", PLAINTEXT), VERSIONS)
    assert [each.api_key for each in asked] == [ApiKey.API_VERSIONS]
    asked, opened = answered(
        open_with("b:1", "me", LOGIN),
        VERSIONS,
        SaslHandshakeResponse(mechanisms=["PLAIN"]),
        SaslAuthenticateResponse(),
    )
    assert [(each.api_key, each.version) for each in asked[1:]] == [(17, 1), (36, 2)]
    assert asked[1].message.mechanism == "PLAIN"
    assert asked[2].message.auth_bytes == b"\0u\0geheim"
    assert opened.versions.newest(3, 0, 3) == 3
    assert opened.login == Login("b:1", LOGIN, 0)
    assert opened.login.renewed_after_s is None, "it counts for as long as the connection"


def test_a_session_that_ends_is_renewed_by_the_same_login_before() -> None:
    handshake = SaslHandshakeResponse(mechanisms=["PLAIN"])
    _, opened = answered(
        open_with("b:1", "me", LOGIN),
        VERSIONS,
        handshake,
        SaslAuthenticateResponse(session_lifetime_ms=60_000),
    )
    assert opened.login.renewed_after_s == pytest.approx(51)
    asked, again = answered(
        opened.login.again(), handshake, SaslAuthenticateResponse(session_lifetime_ms=1_000)
    )
    assert [each.api_key for each in asked] == [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert again.renewed_after_s == pytest.approx(0.85)


def test_what_is_dear_to_compute_is_handed_out_as_work() -> None:
    """A loop does not hash passwords a thousand times in its own thread."""
    security = SecurityOptions(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="u", password="geheim"
    )
    questions = open_with("b:1", "me", security)
    answers: list[Any] = [VERSIONS, SaslHandshakeResponse(), b"first", SaslAuthenticateResponse()]
    steps = [next(questions), *(questions.send(answer) for answer in answers)]
    assert [type(step).__name__ for step in steps] == ["Question", "Question", "Work", "Question", "Work"]


def test_a_login_that_fails_is_told_without_the_password() -> None:
    refusal = SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"])
    with pytest.raises(LoginFailed, match="b:1 does not offer PLAIN; it offers: SCRAM-SHA-512"):
        answered(open_with("b:1", "me", LOGIN), VERSIONS, refusal)
    handshake = SaslHandshakeResponse(mechanisms=["PLAIN"])
    refusal_of_user = SaslAuthenticateResponse(error_code=58)
    with pytest.raises(BrokerRefused, match="login at b:1: the user or the password is wrong") as refused:
        answered(open_with("b:1", "me", LOGIN), VERSIONS, handshake, refusal_of_user)
    assert "geheim" not in str(refused.value)
