"""What is said first on a connection, asked and answered without one."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.errors import BrokerRefused, LoginFailed, UnsupportedBroker
from millrace.client.opening import Questions, ServedVersions, ask_versions, open_with
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse

VERSIONS = ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=2, max_version=9)])
LOGIN = SecurityOptions(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="geheim")


def answered(questions: Questions[Any], *answers: Any) -> tuple[list[Any], Any]:
    """What was asked, each question after the answer to the one before; and what came of it."""
    asked = [next(questions)]
    left = list(answers)
    try:
        while left:
            asked.append(questions.send(left.pop(0)))
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
    asked, served = answered(
        open_with("b:1", "me", LOGIN),
        VERSIONS,
        SaslHandshakeResponse(mechanisms=["PLAIN"]),
        SaslAuthenticateResponse(),
    )
    assert [(each.api_key, each.version) for each in asked[1:]] == [(17, 1), (36, 2)]
    assert asked[1].message.mechanism == "PLAIN"
    assert asked[2].message.auth_bytes == b"\0u\0geheim"
    assert served.newest(3, 0, 3) == 3


def test_a_login_that_fails_is_told_without_the_password() -> None:
    refusal = SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"])
    with pytest.raises(LoginFailed, match="b:1 does not offer PLAIN; it offers: SCRAM-SHA-512"):
        answered(open_with("b:1", "me", LOGIN), VERSIONS, refusal)
    handshake = SaslHandshakeResponse(mechanisms=["PLAIN"])
    refusal_of_user = SaslAuthenticateResponse(error_code=58)
    with pytest.raises(BrokerRefused, match="login at b:1: the user or the password is wrong") as refused:
        answered(open_with("b:1", "me", LOGIN), VERSIONS, handshake, refusal_of_user)
    assert "geheim" not in str(refused.value)
