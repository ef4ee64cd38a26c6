"""Which JSON Web Tokens (RFC 7519) count, and whom they make their holder (KIP-768).

What can be said from a token's header is said on the loop: its algorithm, and whether its key is known.
Verifying the signature and looking at the claims is work for a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from millrace.core.override import override
from millrace.security.jwt.keys import ALGORITHMS, KeyRing, VerificationKey
from millrace.security.jwt.segments import InvalidSegment, decode_segment, parse_object
from millrace.security.sasl.oauthbearer import RefusedToken, ValidToken, Verdict

if TYPE_CHECKING:
    from joserfc.jws import JWSRegistry

SKEW_S: Final = 30
TOKEN_LENGTH_MAX: Final = 65_536
HEADER_LENGTH_MAX: Final = 8_192
"""Some providers put their certificates there."""
SIGNATURE_LENGTH_MAX: Final = 2_048
"""Of the Base64 of an RSA key of 8,192 bits, and more."""
SECONDS_MAX: Final = 2**43
"""A later time cannot be counted in milliseconds of 64 bits by everybody."""
GROUPS_MAX: Final = 1_000
SEGMENTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """`sasl.oauthbearer.*` of one listener."""

    audiences: tuple[str, ...] = ()
    """A token must be for one of these. If there are none, it must not say for whom it is."""
    issuer: str | None = None
    skew_s: int = SKEW_S
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str | None = None
    """Where the groups are; dots lead into objects, as in `realm_access.roles`."""


class JwtValidator:
    """Says what tokens of one provider are worth."""

    def __init__(self, settings: JwtSettings, keys: KeyRing) -> None:
        self._settings = settings
        self._keys = keys

    def begin(self, token: str, now_ms: int) -> RefusedToken | Callable[[], Verdict]:
        segments = token.split(".", SEGMENTS)
        if len(token) > TOKEN_LENGTH_MAX or len(segments) != SEGMENTS or len(segments[0]) > HEADER_LENGTH_MAX:
            return RefusedToken("malformed: not three segments of a bounded length")
        try:
            header = parse_object(decode_segment(segments[0]))
        except InvalidSegment as error:
            return RefusedToken(f"malformed: its header is {error}")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            return RefusedToken(f"its algorithm {algorithm!r:.50} is not accepted")
        if "crit" in header or "b64" in header:
            return RefusedToken("its header asks for extensions")
        if not (key_id is None or isinstance(key_id, str)):
            return RefusedToken("malformed: its key id is no text")
        key = self._keys.find(key_id, algorithm, now_ms)
        if key is None:
            return RefusedToken(f"no key {key_id!r:.100} for {algorithm} is known")
        return JwtWork(token, key, self._settings, now_ms)


class UnsecuredValidator:
    """For tests alone: believes tokens that nobody has signed (`alg: none`), if their claims are in order."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings

    def begin(self, token: str, now_ms: int) -> RefusedToken | Callable[[], Verdict]:
        segments = token.split(".", SEGMENTS)
        if len(token) > TOKEN_LENGTH_MAX or len(segments) != SEGMENTS or segments[2]:
            return RefusedToken("malformed: not two segments of a bounded length, with a dot behind each")
        try:
            header, claims = (parse_object(decode_segment(segment)) for segment in segments[:2])
            if header.get("alg") != "none":
                return RefusedToken("it is signed, and here only unsigned ones count")
            found = check_claims(claims, self._settings, now_ms)
        except InvalidSegment as error:
            return RefusedToken(f"malformed: {error}")
        except _Refused as error:
            return RefusedToken(str(error))
        return lambda: found


@dataclass(frozen=True, slots=True)
class JwtWork:
    """Verifies a token with one key: for a thread. Does not show the token."""

    token: str = field(repr=False)
    key: VerificationKey
    settings: JwtSettings
    now_ms: int

    def __call__(self) -> Verdict:
        from joserfc import jws
        from joserfc.errors import JoseError

        # Their messages quote the token, so none of them goes any further.
        try:
            signed = jws.deserialize_compact(self.token, self.key.key, registry=_registry())
        except JoseError as error:
            return RefusedToken(f"its signature does not count: {error.error or type(error).__name__}")
        except (ValueError, TypeError, RecursionError):
            return RefusedToken("malformed")
        try:
            return check_claims(parse_object(signed.payload), self.settings, self.now_ms)
        except InvalidSegment as error:
            return RefusedToken(f"malformed: its claims are {error}")
        except _Refused as error:
            return RefusedToken(str(error))


class _Refused(Exception):
    """What is wrong with a claim."""


def check_claims(claims: dict[str, Any], settings: JwtSettings, now_ms: int) -> ValidToken:
    """What the claims of a token say whose signature is right. Raises a private error for those that refuse
    it."""
    now_s = now_ms / 1000
    expires_s = _seconds(claims, "exp")
    if expires_s is None:
        raise _Refused("it has no end (exp)")
    if now_s - settings.skew_s >= expires_s:
        raise _Refused("it has expired")
    if _seconds(claims, "iat") is None:
        raise _Refused("it does not say when it was issued (iat)")
    begins_s = _seconds(claims, "nbf")
    if begins_s is not None and now_s + settings.skew_s < begins_s:
        raise _Refused("it is not valid yet")
    if settings.issuer is not None and claims.get("iss") != settings.issuer:
        raise _Refused("it is of another issuer")
    _check_audience(claims.get("aud"), settings.audiences)
    return ValidToken(
        subject=_text(settings.subject_claim, claims.get(settings.subject_claim)),
        expires_ms=int(expires_s * 1000),
        groups=_groups(claims, settings.groups_claim),
        scopes=_texts(settings.scope_claim, claims.get(settings.scope_claim)),
    )


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Refused(f"{name} is no time")
    if not 0 <= value <= SECONDS_MAX:
        raise _Refused(f"{name} is out of range")
    return value


def _check_audience(claimed: object, expected: tuple[str, ...]) -> None:
    audiences = [claimed] if isinstance(claimed, str) else claimed
    if audiences is None:
        if expected:
            raise _Refused("it does not say for whom it is (aud)")
        return
    if not isinstance(audiences, list) or not all(isinstance(audience, str) for audience in audiences):
        raise _Refused("aud is neither a text nor a list of texts")
    # A token that says for whom it is must be for us, and without a setting we are nobody (RFC 7519, 4.1.3).
    if not any(audience in expected for audience in audiences):
        raise _Refused("it is for another audience")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Refused(f"{name} value must be non-null, non-empty, and non-whitespace")
    return value.strip()


def _texts(name: str, value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    texts = tuple(_text(name, one) for one in values)
    if len(dict.fromkeys(texts)) != len(texts):
        raise _Refused(f"{name} value must not contain duplicates")
    return texts


def _groups(claims: dict[str, Any], name: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else value
    # Not passed over: what is denied to a group must not be allowed because its name cannot be read.
    if not isinstance(values, list) or len(values) > GROUPS_MAX:
        raise _Refused(f"{name} is no list of at most {GROUPS_MAX} groups")
    return tuple(dict.fromkeys(_text(name, one) for one in values))


@cache
def _registry() -> JWSRegistry:
    from joserfc.errors import UnsupportedAlgorithmError
    from joserfc.jws import JWSRegistry as BaseRegistry

    class Registry(BaseRegistry):
        """Accepts what we accept, in sizes that providers have, and warns nobody: `EdDSA` has a new name, but
        providers go on using the old one."""

        max_header_length = HEADER_LENGTH_MAX
        max_payload_length = TOKEN_LENGTH_MAX
        max_signature_length = SIGNATURE_LENGTH_MAX

        @override
        def get_alg(self, name: str) -> Any:
            if name not in ALGORITHMS:
                raise UnsupportedAlgorithmError(f"Algorithm of '{name}' is not allowed")
            return self.algorithms[name]

    return Registry(algorithms=list(ALGORITHMS), strict_check_header=False)
