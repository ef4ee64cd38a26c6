"""Logins on a connection: the order of requests, the answers, and that nothing is served before the end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.network import login as login_module
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.login import ListenerLogins
from millrace.security.credentials.passwords import ConfiguredUsers
from millrace.security.principals import NOBODY, Identity, user
from millrace.security.sasl.exchange import Failure, Step, Success, Work
from millrace.security.sasl.plain import PlainExchange
from millrace.security.sasl.session import SaslSettings
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import response_frame
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from millrace.wire.messages.metadata import MetadataRequest
from millrace.wire.messages.produce import ProduceRequest
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.unit.broker.handlers.broker import NOW_MS, RESTRICTED, Broker, FixedClock
from tests.unit.broker.network.client import Client, frame, responses

VERSIONS, SHAKE, AUTH = ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
SASL_FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"


class SlowExchange:
    """Asks for work, and says of any token that it is carl's, or fails."""

    claimed = ""

    def respond(self, token: bytes, now_ms: int) -> Step:
        del now_ms
        if token == b"broken":
            return Work(lambda: 1 // 0, lambda _: Failure("never"))
        identity = Identity(principal=user("carl"), mechanism="SLOW", expires_ms=NOW_MS + 60_000)
        return Work(lambda: token == b"yes", lambda good: Success(identity) if good else Failure("no"))


def logins_of(**settings: Any) -> ListenerLogins:
    chosen: dict[str, Any] = {
        "mechanisms": {
            "PLAIN": lambda: PlainExchange(ConfiguredUsers({"alice": "secret", "bob": "secret"})),
            "SLOW": SlowExchange,
        },
        "failure_delay_ms": 0,
        **settings,
    }
    return ListenerLogins("LISTENER", SaslSettings(**chosen), FixedClock(), None)


class LoginClient(Client):
    """A client of a listener with logins."""

    def __init__(self, broker: Broker, logins: ListenerLogins) -> None:
        self.logins = logins
        dispatcher = Dispatcher(APIS)
        super().__init__(
            broker.services,
            dispatcher,
            logins,
            answer_unserved=lambda key, version, correlation: _unserved(dispatcher, key, correlation),
        )

    async def shake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return await self.ask(SHAKE, version, SaslHandshakeRequest(mechanism=mechanism))

    async def token(self, data: bytes, version: int = 2) -> Any:
        return await self.ask(AUTH, version, SaslAuthenticateRequest(auth_bytes=data))

    @property
    def is_ended(self) -> bool:
        return self.transport.is_closed or self.transport.is_aborted


def _unserved(dispatcher: Dispatcher, key: int, correlation_id: int) -> bytes | None:
    body = dispatcher.answer_unserved(key)
    return None if body is None else response_frame(correlation_id, body, flexible=False)


def asked() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="tester", client_software_version="1")


def run(broker: Broker, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    broker.run(work())


def test_a_login_ends_with_the_principal_and_nothing_is_left_of_it(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        answer = await client.ask(VERSIONS, 3, asked())
        assert {SHAKE, AUTH} <= {api.api_key for api in answer.api_keys}
        answer = await client.shake()
        assert (answer.error_code, answer.mechanisms) == (0, ["PLAIN", "SLOW"])
        answer = await client.token(RIGHT)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        assert client.connection.decisions.identity == Identity(principal=user("alice"), mechanism="PLAIN")
        assert client.connection.login is None
        answer = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        assert answer.brokers
        assert client.logins.counts["PLAIN"].succeeded == 1
        # A handshake is an ordinary request now, and makes no sense.
        answer = await client.shake()
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = await client.token(RIGHT)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(broker, work)


@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_frames_come_in_pieces_and_requests_behind_the_login_are_served(broker: Broker, size: int) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        data = (
            frame(SHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            + frame(AUTH, 1, SaslAuthenticateRequest(auth_bytes=RIGHT))
            + frame(VERSIONS, 0, asked())
        )
        for start in range(0, len(data), size):
            client.receive(data[start : start + size])
        written = await client.answers()
        sizes = []
        while written:
            (length,) = struct.unpack_from(">i", written)
            sizes.append(length)
            written = written[length + 4 :]
        assert len(sizes) == 3

    run(broker, work)


@pytest.mark.parametrize(
    "token, told",
    [
        (WRONG, "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that"),
        (b"rubbish", "due to invalid credentials with SASL mechanism PLAIN"),
    ],
)
def test_a_failed_login_is_answered_counted_and_ended(
    broker: Broker, caplog: pytest.LogCaptureFixture, token: bytes, told: str
) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        await client.shake()
        answer = await client.token(token)
        assert answer.error_code == SASL_FAILED
        assert told in answer.error_message
        assert client.transport.is_closed
        assert client.logins.counts["PLAIN"].failed == 1
        assert client.connection.decisions.identity.mechanism is None
        client.receive(frame(VERSIONS, 0, asked()))
        assert await client.answers() == b""

    run(broker, work)
    assert "login failed" in caplog.text
    assert "wrong" not in caplog.text.replace("wrong user name or password", "")
    assert "secret" not in caplog.text


def test_the_answer_to_a_failed_login_waits_and_nothing_is_read_meanwhile(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of(failure_delay_ms=50))
        await client.shake()
        began = asyncio.get_running_loop().time()
        client.receive(frame(AUTH, 1, SaslAuthenticateRequest(auth_bytes=WRONG)))
        await asyncio.sleep(0.01)
        assert client.written() == b""
        assert not client.transport.is_reading
        (answer,) = responses(AUTH, 1, await client.answers())
        assert answer.error_code == SASL_FAILED
        assert asyncio.get_running_loop().time() - began >= 0.045
        assert client.transport.is_closed

    run(broker, work)


def test_an_unknown_mechanism_is_told_which_there_are_and_ended(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        answer = await client.shake("GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SLOW"]
        assert client.transport.is_closed
        assert client.logins.counts[login_module.NO_MECHANISM].failed == 1

    run(broker, work)


@pytest.mark.parametrize("before", [(), ("versions",), ("versions", "shake"), ("shake",)])
@pytest.mark.parametrize("key, version, request_", [(ApiKey.METADATA, 1, MetadataRequest(topics=[]))])
def test_no_other_request_is_served_before_the_end_of_the_login(
    broker: Broker, before: tuple[str, ...], key: ApiKey, version: int, request_: object
) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        for step in before:
            if step == "versions":
                await client.ask(VERSIONS, 3, asked())
            else:
                await client.shake()
        client.receive(frame(key, version, request_))
        # Metadata has no place for one error: between tokens, too, the end of the connection is the answer.
        assert await client.answers() == b""
        assert client.is_ended

    run(broker, work)


def test_between_tokens_another_request_is_answered_with_an_error_where_that_has_a_place(
    broker: Broker,
) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        await client.shake()
        answer = await client.ask(ApiKey.LIST_GROUPS, 3, ListGroupsRequest())
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.transport.is_closed
        client = LoginClient(broker, logins_of())
        await client.shake()
        answer = await client.ask(VERSIONS, 3, asked())
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.transport.is_closed

    run(broker, work)


def test_a_large_request_before_the_login_takes_no_memory(broker: Broker) -> None:
    """Faults S1 and S2: only what a token may have is waited for."""

    async def work() -> None:
        client = LoginClient(broker, logins_of(token_bytes_max=1_000))
        large = frame(ApiKey.PRODUCE, 9, ProduceRequest())
        client.receive(struct.pack(">i", 1_001) + large[4:])
        assert await client.answers() == b""
        assert client.transport.is_closed
        client = LoginClient(broker, logins_of())
        client.receive(b"\xff\xff\xff\xff")
        assert client.transport.is_aborted

    run(broker, work)


@pytest.mark.parametrize("start, word", [(b"\x16\x03\x01\x02\x00", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP")])
def test_who_speaks_another_protocol_is_closed_with_a_hint(
    broker: Broker, caplog: pytest.LogCaptureFixture, start: bytes, word: str
) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        client.receive(start)
        assert client.transport.is_aborted
        assert client.refused == ["frame_size"]

    caplog.set_level("INFO")
    run(broker, work)
    assert word in caplog.records[-1].__dict__["reason"]


@pytest.mark.parametrize("body", [b"", b"\0" * 9, struct.pack(">hhih", 17, 1, 1, -5), b"\xff" * 40])
def test_what_cannot_be_read_ends_the_connection(broker: Broker, body: bytes) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        client.receive(struct.pack(">i", len(body)) + body)
        assert await client.answers() == b""
        assert client.is_ended

    run(broker, work)


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        client.receive(struct.pack(">ihhih", 10, VERSIONS, 99, 7, -1))
        (answer,) = responses(VERSIONS, 0, await client.answers())
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        answer = await client.ask(VERSIONS, 3, asked())
        assert answer.error_code == 0
        assert (await client.shake()).error_code == 0

    run(broker, work)


def test_tokens_are_raw_after_the_oldest_handshake(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of())
        await client.shake(version=0)
        client.receive(struct.pack(">i", len(RIGHT)) + RIGHT)
        assert await client.answers() == struct.pack(">i", 0)
        assert client.connection.decisions.identity.principal == user("alice")
        client = LoginClient(broker, logins_of())
        await client.shake(version=0)
        client.receive(struct.pack(">i", len(WRONG)) + WRONG)
        assert await client.answers() == b""
        assert client.transport.is_closed

    run(broker, work)


def test_work_that_fails_ends_the_login_as_a_wrong_password_does(broker: Broker) -> None:
    async def work() -> None:
        for token in (b"no", b"broken"):
            client = LoginClient(broker, logins_of())
            await client.shake("SLOW")
            answer = await client.token(token)
            assert answer.error_code == SASL_FAILED
            assert "invalid credentials with SASL mechanism SLOW" in answer.error_message
            assert client.transport.is_closed

    run(broker, work)


def test_too_many_logins_that_wait_fail(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with ThreadPoolExecutor(1) as lane:
            logins = logins_of()
            logins.lane = lane
            assert await logins.run(lambda: 7) == 7
            assert logins.waiting_count == 0
            monkeypatch.setattr(login_module, "WAITING_MAX", 0)
            client = LoginClient(broker, logins)
            await client.shake("SLOW")
            assert (await client.token(b"yes")).error_code == SASL_FAILED

    run(broker, work)


def test_a_session_with_an_end_is_ended_by_the_next_request_and_may_be_prolonged(broker: Broker) -> None:
    async def work() -> None:
        logins = logins_of(reauthentication_ms_max={"PLAIN": 30})
        client = LoginClient(broker, logins)
        await client.shake()
        assert (await client.token(RIGHT)).session_lifetime_ms == 30
        assert client.connection.login is not None
        assert (await client.ask(VERSIONS, 3, asked())).error_code == 0
        await asyncio.sleep(0.04)
        # Past its end, a handshake is what helps, even if another request stands behind it.
        client.receive(
            frame(SHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            + frame(AUTH, 1, SaslAuthenticateRequest(auth_bytes=RIGHT))
        )
        await asyncio.sleep(0.01)
        assert len(await client.answers()) > 20
        assert (await client.ask(VERSIONS, 3, asked())).error_code == 0
        assert (logins.counts["PLAIN"].succeeded, logins.counts["PLAIN"].repeated) == (1, 1)
        await asyncio.sleep(0.04)
        client.receive(frame(VERSIONS, 3, asked()))
        assert await client.answers() == b""
        assert client.transport.is_aborted
        assert logins.expired_killed_count == 1

    run(broker, work)


def test_nobody_becomes_somebody_else_by_logging_in_again(broker: Broker) -> None:
    async def work() -> None:
        client = LoginClient(broker, logins_of(reauthentication_ms_max={"PLAIN": 60_000}))
        await client.shake()
        await client.token(RIGHT)
        assert (await client.shake()).error_code == 0
        answer = await client.token(b"\0bob\0secret")
        assert answer.error_code == SASL_FAILED
        assert "Cannot change principals" in answer.error_message
        assert client.transport.is_closed
        assert client.connection.decisions.identity.principal == user("alice")

    run(broker, work)


def test_every_login_is_told_to_whoever_listens(broker: Broker) -> None:
    async def work() -> None:
        told: list[tuple[str, Identity | None, str]] = []
        logins = logins_of()
        logins.told = lambda _connection, mechanism, identity, reason: told.append(
            (mechanism, identity, reason)
        )
        for token in (RIGHT, WRONG):
            client = LoginClient(broker, logins)
            await client.shake()
            await client.token(token)
        assert [mechanism for mechanism, _, _ in told] == ["PLAIN", "PLAIN"]
        assert told[0][1] == Identity(principal=user("alice"), mechanism="PLAIN")
        assert told[1][1:] == (None, "wrong user name or password")

    run(broker, work)


def test_who_a_failed_login_claimed_to_be_is_known(broker: Broker) -> None:
    async def work() -> None:
        claimed: list[str] = []
        logins = logins_of()
        logins.told = lambda connection, *_: claimed.append(
            "" if connection.login is None else connection.login.session.claimed
        )
        client = LoginClient(broker, logins)
        await client.shake()
        await client.token(WRONG)
        assert claimed == [WRONG.split(b"\0")[1].decode()]

    run(broker, work)


def test_who_is_refused_after_the_login_finds_the_connection_closed(broker: Broker) -> None:
    async def work() -> None:
        told: list[str] = []
        logins = logins_of()
        logins.told = lambda _connection, mechanism, _identity, _reason: told.append(mechanism)
        logins.refuses = lambda identity: f"not now: {identity.principal}"
        client = LoginClient(broker, logins)
        await client.shake()
        client.receive(frame(AUTH, 1, SaslAuthenticateRequest(auth_bytes=RIGHT)))
        assert client.transport.is_aborted
        assert client.connection.decisions.identity.principal == NOBODY.principal
        assert told == []

    run(broker, work)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    """A broker that checks permissions."""
    broker = Broker(tmp_path / "guarded", RESTRICTED)
    broker.start()
    yield broker
    broker.stop()


def test_who_goes_while_a_thread_checks_the_login_leaves_nothing_behind(guarded: Broker) -> None:
    """Else others of the same name are forgotten while they are connected, and their end fails."""

    async def work() -> None:
        recognition = guarded.services.recognition
        others = [LoginClient(guarded, logins_of()) for _ in range(2)]
        before = recognition.askers_count
        for how in ("lost", "aborted"):
            client = LoginClient(guarded, logins_of())
            told: list[object] = []
            client.logins.told = lambda *login, told=told: told.append(login)
            await client.shake("SLOW")
            client.receive(frame(AUTH, 1, SaslAuthenticateRequest(auth_bytes=b"yes")))
            if how == "aborted":
                client.connection.abort("the sweep")
            client.connection.connection_lost(None)
            assert await client.answers() == b""
            assert client.connection.decisions.identity == NOBODY
            assert told == []
        assert recognition.askers_count == before
        for other in others:
            other.connection.connection_lost(None)

    run(guarded, work)
