"""The order of requests on a connection that logs in is Kafka's, and so is every answer.

The mechanism of these tests is made of tokens that say what is to happen, so that each line of the table can
be reached.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.security.credentials.passwords import ConfiguredUsers
from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Challenge, Exchange, Failure, Step, Success, Work
from millrace.security.sasl.plain import PlainExchange
from millrace.security.sasl.session import (
    Close,
    ErrorAnswer,
    Event,
    HandshakeAnswer,
    HandshakeAsked,
    Moment,
    OtherAsked,
    RawAnswer,
    Reaction,
    SaslSession,
    SaslSettings,
    State,
    TokenAnswer,
    TokenSent,
    TooLarge,
    Unreadable,
    VersionsAnswer,
    VersionsAsked,
)
from millrace.wire.error_codes import ErrorCode

ALICE = Identity(principal=user("alice"), mechanism="TEST")
WALL_MS = 1_000_000
NOW = Moment(WALL_MS, 50.0)
MECHANISMS = ("TEST", "OTHER")
DONE = (TokenAnswer(data=b"done"), ALICE)


class ScriptedExchange:
    """Does what a token says: `alice` logs alice in, `until 70` with a credential that ends at that time."""

    claimed = "alice"

    def respond(self, token: bytes, now_ms: int) -> Step:
        word, _, rest = token.decode().partition(" ")
        match word:
            case "more":
                return Challenge(b"go on")
            case "no":
                return Failure("log this", rest or None)
            case "work":
                return Work(lambda: rest, lambda result: ScriptedExchange()._answer(result, now_ms))
            case "until":
                return Success(replace(ALICE, expires_ms=int(rest)), b"done")
            case name:
                return Success(replace(ALICE, principal=user(name)), b"done")

    def _answer(self, word: str, now_ms: int) -> Challenge | Success | Failure:
        step = self.respond(word.encode(), now_ms)
        assert not isinstance(step, Work)
        return step


def session_of(**reauthentication_ms_max: int) -> SaslSession:
    mechanisms: dict[str, type[ScriptedExchange]] = dict.fromkeys(MECHANISMS, ScriptedExchange)
    return SaslSession(SaslSettings(mechanisms=mechanisms, reauthentication_ms_max=reauthentication_ms_max))


def token(text: str, version: int | None = 2) -> TokenSent:
    return TokenSent(version, text.encode())


def state_of(session: SaslSession) -> State:
    """For the type checker, which does not see that it changes."""
    return session.state


def run(session: SaslSession, *events: Event, now: Moment = NOW) -> Reaction:
    """Let it all happen, and return the last reaction."""
    reaction = Reaction()
    for event in events:
        reaction = session.receive(event, now)
        if reaction.work is not None:
            reaction = session.resume(reaction.work.run(), now)
    return reaction


HANDSHAKE = HandshakeAsked(1, "TEST")
HANDSHAKE_0 = HandshakeAsked(0, "TEST")
IN_TOKENS = (VersionsAsked(), HANDSHAKE)


def failed(told: str | None, reason: str = "log this") -> Reaction:
    """What a failed login looks like."""
    return Reaction(
        answer=TokenAnswer(ErrorCode.SASL_AUTHENTICATION_FAILED, told),
        close=Close(reason, delay_ms=100, is_failed_login=True),
    )


@pytest.mark.parametrize(
    "events",
    [
        (VersionsAsked(), HANDSHAKE, token("alice")),
        (HANDSHAKE, token("alice")),
        (HANDSHAKE, token("more"), token("more"), token("alice")),
        (VersionsAsked(is_known_version=False), VersionsAsked(), HANDSHAKE, token("alice")),
        (VersionsAsked(is_known_version=False), HANDSHAKE, token("alice")),
        (VersionsAsked(is_valid=False), VersionsAsked(), HANDSHAKE, token("alice")),
        (HANDSHAKE, token("work alice")),
        (HANDSHAKE, token("work more"), token("alice")),
    ],
)
def test_ways_that_lead_in(events: tuple[Event, ...]) -> None:
    session = session_of()
    reaction = run(session, *events)
    assert reaction == Reaction(answer=TokenAnswer(data=b"done"), identity=ALICE)
    assert session.identity == ALICE
    assert session.state is State.COMPLETE
    assert session.expires_loop_s is None
    assert not session.is_expired(1e12)


def test_answers_on_the_way() -> None:
    session = session_of()
    unknown = VersionsAsked(is_known_version=False)
    assert run(session, unknown) == Reaction(answer=VersionsAnswer(ErrorCode.UNSUPPORTED_VERSION))
    assert state_of(session) is State.VERSIONS_OR_HANDSHAKE
    invalid = VersionsAsked(is_valid=False)
    assert run(session, invalid) == Reaction(answer=VersionsAnswer(ErrorCode.INVALID_REQUEST))
    assert state_of(session) is State.VERSIONS_OR_HANDSHAKE
    assert run(session, VersionsAsked()) == Reaction(answer=VersionsAnswer())
    assert state_of(session) is State.HANDSHAKE
    assert run(session, HANDSHAKE) == Reaction(answer=HandshakeAnswer(mechanisms=MECHANISMS))
    assert state_of(session) is State.TOKENS
    assert run(session, token("more")) == Reaction(answer=TokenAnswer(data=b"go on"))
    assert session.identity is None


def test_after_handshake_v0_tokens_are_raw() -> None:
    session = session_of()
    assert run(session, HANDSHAKE_0) == Reaction(answer=HandshakeAnswer(mechanisms=MECHANISMS))
    assert state_of(session) is State.RAW_TOKENS
    assert run(session, token("more", None)) == Reaction(answer=RawAnswer(b"go on"))
    assert run(session, token("work alice", None)) == Reaction(answer=RawAnswer(b"done"), identity=ALICE)
    assert not session.expects_raw_token
    assert not session.speaks_reauthentication


def test_a_raw_login_that_fails_ends_without_an_answer_and_as_slowly_as_any() -> None:
    reaction = run(session_of(), HANDSHAKE_0, token("no told", None))
    assert reaction == Reaction(close=Close("log this", delay_ms=100, is_failed_login=True))


@pytest.mark.parametrize(
    "before",
    [(), (VersionsAsked(is_known_version=False),), (VersionsAsked(),), (HANDSHAKE,), (HANDSHAKE_0,)],
)
@pytest.mark.parametrize(
    "event", [OtherAsked("PRODUCE"), OtherAsked("METADATA"), Unreadable("not Kafka's"), token("alice")]
)
def test_nothing_else_is_served_before_the_login_ends(before: tuple[Event, ...], event: Event) -> None:
    """S12."""
    session = session_of()
    run(session, *before)
    if before in ((HANDSHAKE,), (HANDSHAKE_0,)) and event == token("alice"):
        return
    reaction = run(session, event)
    assert reaction.identity is None
    assert reaction.close is not None
    assert session.state is State.FAILED
    if before == (HANDSHAKE,) and isinstance(event, OtherAsked):
        assert reaction.answer == ErrorAnswer(ErrorCode.ILLEGAL_SASL_STATE)
        assert reaction.close.reason == (
            f"Unexpected Kafka request of type {event.api} during SASL authentication."
        )
        assert reaction.close.delay_ms == 100
    else:
        assert reaction.answer is None
        assert reaction.close.delay_ms == 0
        assert not reaction.close.is_failed_login


@pytest.mark.parametrize(
    "event, answer",
    [
        (HANDSHAKE, HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE)),
        (VersionsAsked(), VersionsAnswer(ErrorCode.ILLEGAL_SASL_STATE)),
    ],
)
def test_requests_of_the_beginning_are_illegal_between_tokens(
    event: Event, answer: HandshakeAnswer | VersionsAnswer
) -> None:
    reaction = run(session_of(), *IN_TOKENS, event)
    assert reaction.answer == answer
    assert reaction.close is not None
    assert reaction.close.delay_ms == 100


def test_api_versions_is_answered_once() -> None:
    reaction = run(session_of(), VersionsAsked(), VersionsAsked())
    assert reaction.answer is None
    assert reaction.close == Close("unexpected API_VERSIONS in state HANDSHAKE of the login")


def test_a_client_of_another_protocol_is_told_in_the_log() -> None:
    reaction = run(session_of(), Unreadable("unknown API key 5635"))
    assert reaction.close is not None
    assert "wrong security protocol" in reaction.close.reason


@pytest.mark.parametrize("mechanism", ["GSSAPI", "test", "", "x" * 10_000])
def test_an_unknown_mechanism_is_answered_with_those_that_there_are(mechanism: str) -> None:
    reaction = run(session_of(), VersionsAsked(), HandshakeAsked(1, mechanism))
    assert reaction.answer == HandshakeAnswer(ErrorCode.UNSUPPORTED_SASL_MECHANISM, MECHANISMS)
    assert reaction.close is not None
    assert reaction.close.delay_ms == 100
    assert reaction.close.is_failed_login
    assert len(reaction.close.reason) < 200


@pytest.mark.parametrize("before", [(), (VersionsAsked(),), (HANDSHAKE,), (HANDSHAKE_0,)])
def test_a_frame_that_is_too_large_ends_the_login(before: tuple[Event, ...]) -> None:
    reaction = run(session_of(), *before, TooLarge())
    assert reaction == Reaction(
        close=Close(
            "Failing SASL authentication due to invalid receive size", delay_ms=100, is_failed_login=True
        )
    )


def test_a_token_that_is_too_large_is_not_looked_at() -> None:
    session = SaslSession(SaslSettings(mechanisms={"TEST": ScriptedExchange}, token_bytes_max=5))
    reaction = run(session, HANDSHAKE, token("alice "))
    assert reaction.close is not None
    assert "invalid receive size" in reaction.close.reason
    session = SaslSession(SaslSettings(mechanisms={"TEST": ScriptedExchange}, token_bytes_max=5))
    assert run(session, HANDSHAKE, token("alice")).identity == ALICE


def test_a_failure_tells_the_client_nothing_unless_the_mechanism_says_so() -> None:
    silent = "Authentication failed during authentication due to invalid credentials with SASL mechanism TEST"
    assert run(session_of(), *IN_TOKENS, token("no")) == failed(silent)
    assert run(session_of(), *IN_TOKENS, token("work no")) == failed(silent)
    assert run(session_of(), *IN_TOKENS, token("no this")) == failed("this")


def test_work_that_could_not_be_done_is_a_failed_login() -> None:
    session = session_of()
    assert run(session, *IN_TOKENS).work is None
    assert session.receive(token("work alice"), NOW).work is not None
    assert session.state is State.WORKING
    reaction = session.abandon("the thread died")
    assert reaction.close == Close("the thread died", delay_ms=100, is_failed_login=True)
    assert isinstance(reaction.answer, TokenAnswer)
    assert "the thread died" not in str(reaction.answer.message)


def test_nothing_follows_a_failure() -> None:
    session = session_of()
    run(session, *IN_TOKENS, token("no"))
    for event in (token("alice"), HANDSHAKE, VersionsAsked(), OtherAsked("PRODUCE"), TooLarge()):
        assert run(session, event) == Reaction()
    assert session.identity is None


# Sessions that end, and re-authentication.


@pytest.mark.parametrize(
    "text, setting_ms, lifetime_ms",
    [
        ("alice", 0, None),
        ("alice", 3_600_000, 3_600_000),
        (f"until {WALL_MS + 5_000}", 0, 5_000),
        (f"until {WALL_MS + 5_000}", 2_000, 2_000),
        (f"until {WALL_MS + 5_000}", 20_000, 5_000),
        (f"until {WALL_MS - 1}", 20_000, 0),
    ],
)
@pytest.mark.parametrize("is_raw", [False, True])
def test_a_session_ends_with_its_credential_or_by_the_setting(
    text: str, setting_ms: int, lifetime_ms: int | None, is_raw: bool
) -> None:
    session = session_of(TEST=setting_ms, OTHER=1)
    reaction = run(session, HandshakeAsked(0 if is_raw else 1, "TEST"), token(text, None if is_raw else 1))
    if not is_raw:
        assert isinstance(reaction.answer, TokenAnswer)
        assert reaction.answer.session_lifetime_ms == (lifetime_ms or 0)
        assert session.speaks_reauthentication
    if lifetime_ms is None:
        assert session.expires_loop_s is None
    else:
        assert session.expires_loop_s == NOW.loop_s + lifetime_ms / 1000
        assert not session.is_expired(NOW.loop_s + lifetime_ms / 1000)
        assert session.is_expired(NOW.loop_s + lifetime_ms / 1000 + 0.001)


def test_a_client_of_the_first_version_does_not_know_of_lifetimes() -> None:
    session = session_of(TEST=1000)
    run(session, HANDSHAKE, token("more", 0))
    assert not session.speaks_reauthentication
    run(session, token("more", 1), token("alice", 0))
    assert session.speaks_reauthentication


def later(seconds: float) -> Moment:
    return Moment(WALL_MS + int(seconds * 1000), NOW.loop_s + seconds)


def complete(**settings: int) -> SaslSession:
    session = session_of(**settings)
    run(session, *IN_TOKENS, token("alice"))
    return session


def test_without_an_end_there_is_no_re_authentication() -> None:
    session = complete()
    assert run(session, HANDSHAKE) == Reaction(answer=HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE))
    assert run(session, token("alice")) == Reaction(
        answer=TokenAnswer(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )
    )
    assert session.state is State.COMPLETE


def test_re_authentication_prolongs_the_session() -> None:
    session = complete(TEST=10_000)
    assert session.expires_loop_s == NOW.loop_s + 10
    reaction = run(session, HANDSHAKE, now=later(8))
    assert reaction == Reaction(answer=HandshakeAnswer(mechanisms=MECHANISMS))
    assert session.identity == ALICE
    reaction = run(session, token("work alice"), now=later(9))
    assert reaction == Reaction(answer=TokenAnswer(data=b"done", session_lifetime_ms=10_000), identity=ALICE)
    assert session.expires_loop_s == NOW.loop_s + 19


def test_a_session_may_be_prolonged_after_its_end_but_nothing_else_is_served() -> None:
    session = complete(TEST=10_000)
    assert session.is_expired(later(11).loop_s)
    run(session, HANDSHAKE, token("alice"), now=later(11))
    assert not session.is_expired(later(11).loop_s)


def test_re_authentication_is_tried_once_a_second() -> None:
    session = complete(TEST=10_000)
    run(session, HANDSHAKE, token("alice"), now=later(1))
    illegal = Reaction(answer=HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE))
    assert run(session, HANDSHAKE, now=later(1.9)) == illegal
    assert run(session, HANDSHAKE, now=later(2)).answer == HandshakeAnswer(mechanisms=MECHANISMS)


def test_a_handshake_that_comes_too_early_does_not_keep_an_expired_session_open() -> None:
    session = complete(TEST=100)
    run(session, HANDSHAKE, token("alice"), now=later(1))
    assert run(session, HANDSHAKE, now=later(1.5)) == Reaction(close=Close("the session has expired"))
    session = complete(TEST=100)
    assert run(session, token("alice"), now=later(1)) == Reaction(close=Close("the session has expired"))


def test_re_authentication_as_somebody_else_fails() -> None:
    text = "Cannot change principals during re-authentication from User.alice: User.bob"
    session = complete(TEST=10_000)
    assert run(session, HANDSHAKE, token("bob"), now=later(5)) == failed(text, text)
    assert session.identity == ALICE
    assert session.state is State.FAILED


def test_re_authentication_by_another_mechanism_fails_with_the_next_request() -> None:
    for event in (
        token("alice"),
        HANDSHAKE,
        OtherAsked("PRODUCE"),
        Unreadable("x"),
        VersionsAsked(),
        TooLarge(),
    ):
        session = complete(TEST=10_000)
        reaction = run(session, HandshakeAsked(1, "OTHER"), now=later(5))
        assert reaction == Reaction(answer=HandshakeAnswer(mechanisms=MECHANISMS))
        assert run(session, event, now=later(5)) == Reaction(
            close=Close(
                "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of "
                "mechanism 'TEST'",
                delay_ms=100,
                is_failed_login=True,
            )
        )


def test_re_authentication_that_fails_says_so() -> None:
    session = complete(TEST=10_000)
    reaction = run(session, HANDSHAKE, token("no"), now=later(5))
    assert reaction == failed(
        "Authentication failed during re-authentication due to invalid credentials with SASL mechanism TEST"
    )


def test_between_tokens_of_a_re_authentication_nothing_else_is_served() -> None:
    session = complete(TEST=10_000)
    run(session, HANDSHAKE, now=later(5))
    reaction = run(session, OtherAsked("PRODUCE"), now=later(5))
    assert reaction.answer == ErrorAnswer(ErrorCode.ILLEGAL_SASL_STATE)
    assert reaction.close is not None


def test_a_real_mechanism_fits() -> None:
    def plain() -> Exchange:
        return PlainExchange(ConfiguredUsers({"alice": "topsecret"}))

    session = SaslSession(SaslSettings(mechanisms={"PLAIN": plain}))
    event = TokenSent(2, b"\0alice\0topsecret")
    reaction = run(session, HandshakeAsked(1, "PLAIN"), event)
    assert str(reaction.identity and reaction.identity.principal) == "User:alice"
    for text in (repr(event), repr(reaction), repr(session), repr(TokenAnswer(data=b"topsecret"))):
        assert "topsecret" not in text


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: nobody gets in without a token that says so, and stays who it is."""

    def __init__(self) -> None:
        super().__init__()
        self.session = session_of(TEST=5_000, OTHER=0)
        self.loop_s = 0.0
        self.first: Identity | None = None
        self.is_proved = False

    @precondition(lambda self: self.session.state is not State.WORKING)
    @rule(
        event=st.one_of(
            st.builds(VersionsAsked, st.booleans(), st.booleans()),
            st.builds(HandshakeAsked, st.integers(0, 1), st.sampled_from(("TEST", "OTHER", "GSSAPI"))),
            st.just(OtherAsked("PRODUCE")),
            st.just(Unreadable("x")),
            st.just(TooLarge()),
        )
    )
    def other(self, event: Event) -> None:
        if self.session.expects_raw_token and not isinstance(event, TooLarge):
            return
        self.react(self.session.receive(event, self.now()))

    @precondition(lambda self: self.session.state is not State.WORKING)
    @rule(text=st.sampled_from(("more", "alice", "bob", "no", "work alice", "work no", "work more")))
    def send(self, text: str) -> None:
        is_raw = self.session.expects_raw_token
        is_open = self.session.state in (State.TOKENS, State.RAW_TOKENS)
        self.is_proved = is_open and text.removeprefix("work ") in ("alice", "bob")
        self.react(self.session.receive(token(text, None if is_raw else 1), self.now()))

    @precondition(lambda self: self.session.state is State.WORKING)
    @rule(is_done=st.booleans())
    def work(self, is_done: bool) -> None:
        pending = self.session._work
        assert pending is not None
        if is_done:
            self.react(self.session.resume(pending.run(), self.now()))
        else:
            self.react(self.session.abandon("lost"))

    @rule(seconds=st.sampled_from((0.3, 1.0, 6.0)))
    def wait(self, seconds: float) -> None:
        self.loop_s += seconds

    def now(self) -> Moment:
        return Moment(int(self.loop_s * 1000), self.loop_s)

    def react(self, reaction: Reaction) -> None:
        if reaction.identity is not None:
            assert self.is_proved
            assert reaction.close is None
            assert self.session.state is State.COMPLETE
            self.first = self.first or reaction.identity
            assert reaction.identity.principal == self.first.principal
        if reaction.close is not None:
            assert self.session.state is State.FAILED
        if self.session.state is State.FAILED:
            assert self.session._exchange is None

    @invariant()
    def somebody_only_after_a_login(self) -> None:
        assert (self.session.identity is None) == (self.first is None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=25)
