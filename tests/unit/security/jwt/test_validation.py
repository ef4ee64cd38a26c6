"""Only tokens that the provider signed, for us and for now, let anybody in."""

from __future__ import annotations

import base64
import hmac
import pickle
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, RSAKey

from millrace.security.jwt.keys import ALGORITHMS, KeyRing, parse_key_set
from millrace.security.jwt.validation import (
    GROUPS_MAX,
    HEADER_LENGTH_MAX,
    TOKEN_LENGTH_MAX,
    JwtSettings,
    JwtValidator,
    JwtWork,
)
from millrace.security.sasl.oauthbearer import RefusedToken, ValidToken, Verdict
from millrace.sim.handover import Handover
from tests.unit.security.jwt.providers import (
    CLAIMS,
    NOW_MS,
    NOW_S,
    key_of,
    key_set,
    public,
    signed,
    validator_of,
)

KEY = public("ES256", kid="one")


def verdict_of(validator: JwtValidator, token: str, now_ms: int = NOW_MS) -> Verdict:
    begun = validator.begin(token, now_ms)
    return begun if isinstance(begun, RefusedToken) else begun()


def refusal(validator: JwtValidator, token: str, now_ms: int = NOW_MS) -> str:
    verdict = verdict_of(validator, token, now_ms)
    assert isinstance(verdict, RefusedToken), verdict
    assert token.rpartition(".")[2] not in verdict.reason or not token.rpartition(".")[2]
    return verdict.reason


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_token_of_each_algorithm_lets_its_subject_in(
    algorithm: str, recwarn: pytest.WarningsRecorder
) -> None:
    token = signed(algorithm=algorithm, kid="one") if algorithm != "EdDSA" else _signed_by_old_name()
    recwarn.clear()
    verdict = verdict_of(validator_of(public(algorithm, kid="one")), token)
    assert verdict == ValidToken(subject="alice", expires_ms=(NOW_S + 300) * 1000)
    assert not recwarn.list


def _signed_by_old_name() -> str:
    with pytest.warns(match="RFC 9864"):
        return signed(algorithm="EdDSA", kid="one")


def test_a_token_without_a_key_id_is_checked_with_the_only_key() -> None:
    assert isinstance(verdict_of(validator_of(KEY), signed()), ValidToken)
    assert "no key None" in refusal(validator_of(KEY, public("ES256", kid="two")), signed())


def test_headers_of_other_names_and_certificates_do_not_hurt() -> None:
    token = signed(kid="one", typ="at+jwt", nonce="x", x5c=["A" * 4000])
    assert isinstance(verdict_of(validator_of(KEY), token), ValidToken)


def test_an_unknown_key_fails_now_and_is_asked_for() -> None:
    asked = []
    ring = KeyRing(lambda: asked.append(1))
    validator = JwtValidator(JwtSettings(), ring)
    assert "no key 'one' for ES256" in refusal(validator, signed(kid="one"))
    assert "no key 'one' for ES256" in refusal(validator, signed(kid="one"), NOW_MS + 10)
    assert len(asked) == 1
    ring.replace(parse_key_set(key_set(KEY)))
    assert isinstance(verdict_of(validator, signed(kid="one")), ValidToken)


def encoded(content: object) -> str:
    raw = content if isinstance(content, bytes) else orjson.dumps(content)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(header: dict[str, Any], signature: str = "") -> str:
    return f"{encoded(header)}.{encoded(CLAIMS)}.{signature}"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "HS512", "RSA-OAEP", "ES256K", None, 1, ["ES256"]]
)
def test_other_algorithms_are_refused_from_the_header(algorithm: object) -> None:
    for signature in ("", "AAAA"):
        token = unsigned({"alg": algorithm, "kid": "one"}, signature)
        assert "is not accepted" in refusal(validator_of(KEY), token)


def test_a_public_key_is_not_taken_for_a_shared_secret() -> None:
    """The classical confusion: an HMAC with the text of the public key."""
    key = key_of("RS256")
    assert isinstance(key, RSAKey)
    signing_input = unsigned({"alg": "HS256", "kid": "one"}).removesuffix(".")
    token = (
        f"{signing_input}.{encoded(hmac.digest(key.as_pem(private=False), signing_input.encode(), 'sha256'))}"
    )
    assert "'HS256' is not accepted" in refusal(validator_of(public("RS256", kid="one")), token)


def test_a_token_that_brings_its_own_key_is_checked_with_ours() -> None:
    own = ECKey.generate_key("P-256")
    token = signed(key=own, kid="one", jwk=own.as_dict(private=False), jku="https://evil.example/keys")
    assert "signature" in refusal(validator_of(KEY), token)


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}, {"b64": True}]
)
def test_headers_that_ask_for_extensions_are_refused(header: dict[str, Any]) -> None:
    token = unsigned({"alg": "ES256", "kid": "one", **header}, "AAAA")
    assert "extensions" in refusal(validator_of(KEY), token)


@pytest.mark.parametrize(
    "damage",
    [
        lambda token: token[:-4],
        lambda token: token[:-4] + "AAAA",
        lambda token: token + "AAAA",
        lambda token: token.rpartition(".")[0] + ".",
        lambda token: token.rpartition(".")[0],
        lambda token: token + ".x",
        lambda token: token.replace(".", "..", 1),
        lambda token: token.partition(".")[2],
        lambda token: "." + token,
        lambda token: "!" + token,
        lambda token: token.replace(".", ".!", 1),
        lambda token: f"{encoded([])}.{token.partition('.')[2]}",
        lambda token: f"{encoded(b'{')}.{token.partition('.')[2]}",
        lambda token: f"{encoded({'alg': 'ES256', 'kid': 7})}.{token.partition('.')[2]}",
        lambda token: f"{encoded({'alg': 'ES384', 'kid': 'one'})}.{token.partition('.')[2]}",
        lambda token: f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{token.partition('.')[2]}",
        lambda token: token.replace(encoded(CLAIMS), encoded({**CLAIMS, "sub": "bob"})),
        lambda _: "",
        lambda _: "..",
        lambda _: "a.b.c",
        lambda _: "x" * (TOKEN_LENGTH_MAX + 1),
        lambda _: f"{encoded(b'[' * 2000)}.{encoded(CLAIMS)}.AAAA",
    ],
)
def test_a_damaged_token_is_refused(damage: Callable[[str], str]) -> None:
    refusal(validator_of(KEY), damage(signed(kid="one")))


def test_a_header_without_end_is_refused_before_it_is_read() -> None:
    assert "bounded" in refusal(validator_of(KEY), signed(kid="one", x="y" * HEADER_LENGTH_MAX))


@pytest.mark.parametrize("payload", [b"", b"[]", b"x", b"{", b"1", b"[" * 30_000, b'{"exp":1e999}'])
def test_what_is_signed_must_be_claims(payload: bytes) -> None:
    assert "claims" in refusal(validator_of(KEY), signed(payload, kid="one")) or payload.startswith(b'{"exp"')


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"exp": None}, "it has no end"),
        ({"exp": NOW_S - 30}, "it has expired"),
        ({"exp": NOW_S - 30.5}, "it has expired"),
        ({"exp": str(NOW_S + 300)}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": -1}, "exp is out of range"),
        ({"exp": 1e300}, "exp is out of range"),
        ({"exp": 2**64 - 1}, "exp is out of range"),
        ({"iat": None}, "does not say when it was issued"),
        ({"iat": "x"}, "iat is no time"),
        ({"iat": -5}, "iat is out of range"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"nbf": []}, "nbf is no time"),
        ({"sub": None}, "sub value must be"),
        ({"sub": ""}, "sub value must be"),
        ({"sub": " \t"}, "sub value must be"),
        ({"sub": 7}, "sub value must be"),
        ({"scope": ["a", "a"]}, "duplicates"),
        ({"scope": ["a", " a"]}, "duplicates"),
        ({"scope": ["a", ""]}, "scope value must be"),
        ({"scope": ["a", 1]}, "scope value must be"),
        ({"aud": "us"}, "for another audience"),
        ({"aud": ["us"]}, "for another audience"),
        ({"aud": []}, "for another audience"),
        ({"aud": 1}, "aud is neither"),
    ],
)
def test_claims_that_do_not_count(changes: dict[str, Any], problem: str) -> None:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    assert problem in refusal(validator_of(KEY), signed(claims, kid="one"))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW_S - 29},
        {"exp": NOW_S + 0.5},
        {"iat": NOW_S + 1000},
        {"nbf": NOW_S + 30},
        {"nbf": NOW_S - 1000},
        {"iss": "anybody"},
        {"scope": 7},
    ],
)
def test_claims_that_count(changes: dict[str, Any]) -> None:
    assert isinstance(verdict_of(validator_of(KEY), signed(CLAIMS | changes, kid="one")), ValidToken)


@pytest.mark.parametrize(
    "audience, is_accepted",
    [
        ("us", True),
        (["them", "us"], True),
        (["also us"], True),
        ("them", False),
        ("us ", False),
        ([], False),
        (None, False),
        (["us", 1], False),
    ],
)
def test_a_token_is_for_one_of_the_audiences(audience: object, is_accepted: bool) -> None:
    validator = validator_of(KEY, audiences=("us", "also us"))
    claims = CLAIMS if audience is None else CLAIMS | {"aud": audience}
    assert isinstance(verdict_of(validator, signed(claims, kid="one")), ValidToken) == is_accepted


@pytest.mark.parametrize(
    "issuer, is_accepted", [("https://us", True), ("https://us/", False), (None, False), (1, False)]
)
def test_a_token_is_of_the_issuer(issuer: object, is_accepted: bool) -> None:
    validator = validator_of(KEY, issuer="https://us")
    claims = CLAIMS if issuer is None else CLAIMS | {"iss": issuer}
    assert isinstance(verdict_of(validator, signed(claims, kid="one")), ValidToken) == is_accepted


def test_claims_may_have_other_names() -> None:
    validator = validator_of(KEY, subject_claim="email", scope_claim="scp", skew_s=0)
    claims = CLAIMS | {"email": " a@b ", "scp": ["x", "y"], "scope": "z"}
    verdict = verdict_of(validator, signed(claims, kid="one"))
    assert verdict == ValidToken(subject="a@b", expires_ms=(NOW_S + 300) * 1000, scopes=("x", "y"))
    assert "expired" in refusal(validator, signed(claims | {"exp": NOW_S}, kid="one"))


@pytest.mark.parametrize(
    "claims, groups",
    [
        ({}, ()),
        ({"realm": {"roles": ["a", " b ", "a"]}}, ("a", "b")),
        ({"realm": {"roles": "a"}}, ("a",)),
        ({"realm.roles": ["literal"], "realm": {"roles": ["nested"]}}, ("literal",)),
        ({"realm": {}}, ()),
        ({"realm": ["roles"]}, ()),
        ({"realm": {"roles": {}}}, None),
        ({"realm": {"roles": 1}}, None),
        ({"realm": {"roles": ["a", 1]}}, None),
        ({"realm": {"roles": ["a", ""]}}, None),
        ({"realm": {"roles": [str(number) for number in range(GROUPS_MAX + 1)]}}, None),
    ],
)
def test_groups_come_from_a_claim_or_the_token_is_refused(
    claims: dict[str, Any], groups: tuple[str, ...] | None
) -> None:
    validator = validator_of(KEY, groups_claim="realm.roles")
    verdict = verdict_of(validator, signed(CLAIMS | claims, kid="one"))
    if groups is None:
        assert isinstance(verdict, RefusedToken)
    else:
        assert isinstance(verdict, ValidToken)
        assert verdict.groups == groups


def test_work_does_not_show_the_token() -> None:
    token = signed(kid="one")
    work = validator_of(KEY).begin(token, NOW_MS)
    assert isinstance(work, JwtWork)
    for segment in token.split("."):
        assert segment not in repr(work)


def test_work_shares_nothing_with_the_loop() -> None:
    work = validator_of(KEY).begin(TOKEN, NOW_MS)
    assert isinstance(work, JwtWork)
    Handover(work, ())


def test_refusals_never_quote_the_token() -> None:
    """The library's own messages do."""
    token = signed(kid="one") + "A" * 3000
    assert "AAAA" not in refusal(validator_of(KEY), token)


TOKEN = signed(kid="one")


@given(position=st.integers(0, len(TOKEN) - 1), letter=st.sampled_from("AQz09-_.="))
def test_no_change_of_a_token_is_overlooked(position: int, letter: str) -> None:
    changed = TOKEN[:position] + letter + TOKEN[position + 1 :]
    verdict = verdict_of(validator_of(KEY), changed)
    if changed == TOKEN:
        assert isinstance(verdict, ValidToken)
    elif position == len(TOKEN) - 1:
        # The last letter has bits that stand for nothing; whatever they are, the signature is the same.
        assert isinstance(verdict, ValidToken | RefusedToken)
    else:
        assert isinstance(verdict, RefusedToken)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["exp", "iat", "nbf", "aud", "iss", "sub", "scope", "groups"]), JSON))
@settings(max_examples=60)
def test_whatever_is_signed_there_is_a_verdict(claims: dict[str, Any]) -> None:
    validator = validator_of(KEY, groups_claim="groups", issuer="us", audiences=("us",))
    assert isinstance(verdict_of(validator, signed(claims, kid="one")), RefusedToken)
    assert isinstance(
        verdict_of(validator_of(KEY, groups_claim="groups"), signed(CLAIMS | claims, kid="one")),
        ValidToken | RefusedToken,
    )


def test_verdicts_are_plain_values() -> None:
    verdict = verdict_of(validator_of(KEY), TOKEN)
    assert pickle.loads(pickle.dumps(verdict)) == verdict
