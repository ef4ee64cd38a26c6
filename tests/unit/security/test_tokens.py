"""Delegation tokens: who gets, renews, ends and sees one, with Kafka's refusals in Kafka's order."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.credentials.scram import ScramCredential, ScramMechanism, is_password
from millrace.security.errors import (
    InvalidPrincipalType,
    TokenAuthorizationFailed,
    TokenExpired,
    TokenNotFound,
    TokenOwnerMismatch,
    TokenRequestNotAllowed,
    TokensDisabled,
)
from millrace.security.principals import ANONYMOUS, NOBODY, Identity, Principal, user
from millrace.security.tokens import (
    CREDENTIALS_KEPT_MAX,
    LIFETIME_MS_MAX,
    RENEWAL_MS,
    DelegationToken,
    TokenIndex,
    TokenLogins,
    TokenRules,
    TokenSettings,
    check_may_ask,
)
from millrace.sim.handover import Handover

NOW_MS = 1_700_000_000_000
SECRET = b"the brokers' secret"
RULES = TokenRules(TokenSettings(secret_key=SECRET))
DISABLED = TokenRules(TokenSettings())
ALICE, BOB, CAROL = (Identity(principal=user(name), mechanism="PLAIN") for name in ("alice", "bob", "carol"))


def create(
    identity: Identity = ALICE,
    *,
    rules: TokenRules = RULES,
    owner: Principal | None = None,
    renewers: tuple[Principal, ...] = (),
    lifetime_ms: int = -1,
    may_create: bool = False,
) -> DelegationToken:
    return rules.create(
        identity,
        token_id="id-1",
        now_ms=NOW_MS,
        owner=owner,
        renewers=renewers,
        lifetime_ms=lifetime_ms,
        may_create=lambda _: may_create,
    )


def index_of(*tokens: DelegationToken, rules: TokenRules = RULES) -> TokenIndex:
    index = TokenIndex(rules)
    for token in tokens:
        index.put(token)
    return index


def test_a_token_is_its_owners_for_a_day_and_at_most_a_week() -> None:
    assert create() == DelegationToken(
        token_id="id-1",
        owner=ALICE.principal,
        requester=ALICE.principal,
        issued_ms=NOW_MS,
        expires_ms=NOW_MS + RENEWAL_MS,
        ends_ms=NOW_MS + LIFETIME_MS_MAX,
    )


@pytest.mark.parametrize(
    "lifetime_ms, ends_ms, expires_ms",
    [
        (-1, LIFETIME_MS_MAX, RENEWAL_MS),
        (0, LIFETIME_MS_MAX, RENEWAL_MS),
        (1000, 1000, 1000),
        (RENEWAL_MS + 1, RENEWAL_MS + 1, RENEWAL_MS),
        (2**63 - 1, LIFETIME_MS_MAX, RENEWAL_MS),
    ],
)
def test_a_lifetime_can_be_shortened_only(lifetime_ms: int, ends_ms: int, expires_ms: int) -> None:
    token = create(lifetime_ms=lifetime_ms)
    assert (token.ends_ms - NOW_MS, token.expires_ms - NOW_MS) == (ends_ms, expires_ms)


@pytest.mark.parametrize(
    "identity, is_allowed",
    [
        (NOBODY, False),
        (replace(ALICE, is_token=True), False),
        (ALICE, True),
        (Identity(principal=user("CN=a")), True),
        # Somebody of that name who has proved it is not nobody.
        (Identity(principal=ANONYMOUS, mechanism="PLAIN"), True),
    ],
)
def test_only_those_who_proved_who_they_are_by_themselves_may_ask(
    identity: Identity, is_allowed: bool
) -> None:
    index = index_of()
    if is_allowed:
        check_may_ask(identity)
        return
    for ask in (
        lambda: check_may_ask(identity),
        # Before everything else, also before it is said that there are no tokens.
        lambda: create(identity, rules=DISABLED, renewers=(Principal("Role", "x"),)),
        lambda: DISABLED.renew(identity, index, b"", period_ms=1, now_ms=NOW_MS),
        lambda: DISABLED.expire(identity, index, b"", period_ms=1, now_ms=NOW_MS),
        lambda: DISABLED.describe(identity, [], None, lambda _: True),
    ):
        with pytest.raises(TokenRequestNotAllowed):
            ask()


def test_tokens_for_others_need_a_permission() -> None:
    with pytest.raises(TokenAuthorizationFailed, match="User:bob"):
        create(owner=BOB.principal)
    assert create(owner=ALICE.principal).requester == ALICE.principal
    token = create(owner=BOB.principal, may_create=True)
    assert (token.owner, token.requester) == (BOB.principal, ALICE.principal)


def test_renewers_are_users() -> None:
    with pytest.raises(InvalidPrincipalType, match="Role"):
        create(renewers=(BOB.principal, Principal("Role", "ops")))
    with pytest.raises(InvalidPrincipalType):
        create(rules=DISABLED, renewers=(Principal("user", "bob"),))
    assert create(renewers=(BOB.principal,)).renewers == (BOB.principal,)


def test_without_a_secret_key_there_are_no_tokens() -> None:
    index = index_of(create(), rules=DISABLED)
    for ask in (
        lambda: create(rules=DISABLED),
        lambda: DISABLED.hmac_of("id-1"),
        lambda: DISABLED.renew(ALICE, index, b"", period_ms=1, now_ms=NOW_MS),
        lambda: DISABLED.expire(ALICE, index, b"", period_ms=1, now_ms=NOW_MS),
        lambda: DISABLED.describe(ALICE, [], None, lambda _: True),
    ):
        with pytest.raises(TokensDisabled):
            ask()
    # Stored ones stay until they are removed, and let nobody in.
    assert len(index) == 1
    assert TokenLogins(DISABLED, index).find(ScramMechanism.SHA_256, "id-1", NOW_MS) is None
    index.remove("id-1")
    assert len(index) == 0


def test_the_secret_of_a_token_is_the_hmac_of_its_id() -> None:
    assert RULES.hmac_of("id-1") == hmac.new(SECRET, b"id-1", hashlib.sha512).digest()


@pytest.mark.parametrize("identity", [ALICE, BOB])
def test_owners_and_renewers_renew(identity: Identity) -> None:
    index = index_of(create(renewers=(BOB.principal,)))
    secret = RULES.hmac_of("id-1")
    later_ms = NOW_MS + 1000
    for period_ms, expires_ms in ((-1, RENEWAL_MS), (0, RENEWAL_MS), (5, 5), (2**63 - 1, RENEWAL_MS)):
        renewed = RULES.renew(identity, index, secret, period_ms=period_ms, now_ms=later_ms)
        assert renewed.expires_ms == later_ms + expires_ms
        assert renewed.ends_ms == NOW_MS + LIFETIME_MS_MAX


def test_nobody_renews_beyond_the_end() -> None:
    token = replace(create(), expires_ms=NOW_MS + LIFETIME_MS_MAX)
    now_ms = token.ends_ms - 10
    renewed = RULES.renew(ALICE, index_of(token), RULES.hmac_of("id-1"), period_ms=-1, now_ms=now_ms)
    assert renewed.expires_ms == token.ends_ms


@pytest.mark.parametrize("change", [RULES.renew, RULES.expire])
def test_who_may_not_change_a_token(change: object) -> None:
    assert callable(change)
    token = create(CAROL, owner=ALICE.principal, renewers=(BOB.principal,), may_create=True)
    index, secret = index_of(token), RULES.hmac_of("id-1")
    with pytest.raises(TokenNotFound):
        change(ALICE, index, b"wrong", period_ms=1, now_ms=NOW_MS)
    # Who asked for it on behalf of another has no part in it.
    with pytest.raises(TokenOwnerMismatch):
        change(CAROL, index, secret, period_ms=1, now_ms=NOW_MS)
    # Who wants to renew it is told first that it has expired, who wants to end it that it is not theirs.
    with pytest.raises(TokenExpired if change == RULES.renew else TokenOwnerMismatch):
        change(CAROL, index, secret, period_ms=1, now_ms=token.expires_ms + 1)
    with pytest.raises(TokenExpired):
        change(ALICE, index, secret, period_ms=1, now_ms=token.ends_ms + 1)
    change(ALICE, index, secret, period_ms=1, now_ms=token.expires_ms)


def test_ending_a_token() -> None:
    index, secret = index_of(create()), RULES.hmac_of("id-1")
    removed = RULES.expire(ALICE, index, secret, period_ms=-1, now_ms=NOW_MS + 3)
    assert removed.is_removed
    assert removed.expires_ms == NOW_MS + 3
    # Also one that nobody has swept up yet.
    late_ms = NOW_MS + LIFETIME_MS_MAX + 1
    assert RULES.expire(ALICE, index, secret, period_ms=-1, now_ms=late_ms).is_removed
    for period_ms, expires_ms in ((0, 0), (5, 5), (2**63 - 1, LIFETIME_MS_MAX)):
        expiry = RULES.expire(ALICE, index, secret, period_ms=period_ms, now_ms=NOW_MS)
        assert not expiry.is_removed
        assert expiry.expires_ms == expiry.token.expires_ms == NOW_MS + expires_ms


def test_describing_tokens() -> None:
    mine = create(renewers=(BOB.principal,))
    bobs = replace(create(BOB), token_id="id-2")
    carols = replace(create(CAROL), token_id="id-3")
    known = [mine, bobs, carols]

    def described(owners: list[Principal] | None, *, allowed: tuple[DelegationToken, ...] = ()) -> list[str]:
        found = RULES.describe(BOB, known, owners, lambda token: token in allowed)
        return [token.token_id for token in found]

    assert described(None) == ["id-1", "id-2"]
    assert described([]) == []
    assert described([BOB.principal]) == ["id-1", "id-2"]
    assert described([ALICE.principal]) == ["id-1"]
    assert described([CAROL.principal]) == []
    assert described([CAROL.principal], allowed=(carols,)) == ["id-3"]
    assert described(None, allowed=(carols,)) == ["id-1", "id-2", "id-3"]


def test_an_index_finds_tokens_by_their_secret_until_they_are_removed() -> None:
    token = create()
    index = index_of(token)
    assert index.get("id-1") == index.with_secret(RULES.hmac_of("id-1")) == token
    assert index.with_secret(b"") is None
    renewed = replace(token, expires_ms=NOW_MS + 7)
    index.put(renewed)
    assert (list(index.all()), len(index)) == ([renewed], 1)
    assert index.expired(NOW_MS + 7) == []
    assert index.expired(NOW_MS + 8) == ["id-1"]
    index.remove("id-1")
    index.remove("id-1")
    assert (index.get("id-1"), index.with_secret(RULES.hmac_of("id-1")), len(index)) == (None, None, 0)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_one_logs_in_with_the_hmac_in_base64(mechanism: ScramMechanism) -> None:
    index = index_of(create())
    logins = TokenLogins(RULES, index)
    login = logins.find(mechanism, "id-1", NOW_MS)
    assert login is not None
    assert (login.owner, login.expires_ms) == (ALICE.principal, NOW_MS + RENEWAL_MS)
    assert callable(login.credential)
    credential = login.credential()
    assert credential.iterations == 4096
    assert is_password(mechanism, credential, base64.b64encode(RULES.hmac_of("id-1")).decode())
    # Every broker derives the same, so that a client may begin with one and end with another.
    again = TokenLogins(RULES, index).find(mechanism, "id-1", NOW_MS)
    assert again is not None
    assert callable(again.credential)
    assert again.credential() == credential
    logins.keep(mechanism, "id-1", credential)
    kept = logins.find(mechanism, "id-1", NOW_MS)
    assert kept is not None
    assert kept.credential is credential
    # What is kept lets nobody in whose token is gone.
    assert logins.find(mechanism, "id-1", NOW_MS + RENEWAL_MS + 1) is None
    index.remove("id-1")
    assert logins.find(mechanism, "id-1", NOW_MS) is None


def test_what_is_kept_of_logins_has_a_bound() -> None:
    logins = TokenLogins(RULES, index_of())
    for number in range(CREDENTIALS_KEPT_MAX + 5):
        logins.keep(ScramMechanism.SHA_256, str(number), ScramCredential(b"", b"", b"", 4096))
    assert len(logins._credentials) == CREDENTIALS_KEPT_MAX


def test_nothing_shows_a_secret() -> None:
    login = TokenLogins(RULES, index_of(create())).find(ScramMechanism.SHA_256, "id-1", NOW_MS)
    assert login is not None
    shown = repr(login) + repr(login.credential) + repr(TokenSettings(secret_key=SECRET)) + repr(RULES)
    assert "secret key" not in shown
    assert SECRET.decode() not in shown
    assert repr(RULES.hmac_of("id-1")) not in shown
    assert "secret_key" not in shown
    # Nor does the work share anything with the loop.
    assert callable(login.credential)
    Handover(login.credential, ())


@given(
    lifetime_ms=st.integers(-(2**63), 2**63 - 1),
    periods=st.lists(
        st.tuples(st.integers(0, 10 * RENEWAL_MS), st.integers(-(2**63), 2**63 - 1)), max_size=6
    ),
)
def test_no_renewal_ever_outlives_the_token(lifetime_ms: int, periods: list[tuple[int, int]]) -> None:
    token = create(lifetime_ms=lifetime_ms)
    ends_ms, now_ms, secret = token.ends_ms, NOW_MS, RULES.hmac_of("id-1")
    for wait_ms, period_ms in periods:
        now_ms += wait_ms
        try:
            token = RULES.renew(ALICE, index_of(token), secret, period_ms=period_ms, now_ms=now_ms)
        except TokenExpired:
            assert now_ms > token.expires_ms
            return
        assert now_ms < token.expires_ms or token.expires_ms == ends_ms
        assert token.expires_ms <= min(ends_ms, now_ms + RENEWAL_MS)
        assert token.ends_ms == ends_ms
