"""Keys and tokens of a provider, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from joserfc import jws
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from millrace.security.jwt.keys import KeyRing, parse_key_set
from millrace.security.jwt.validation import JwtSettings, JwtValidator

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
CLAIMS: dict[str, Any] = {"sub": "alice", "exp": NOW_S + 300, "iat": NOW_S - 10}


@cache
def key_of(algorithm: str) -> Key:
    """A private key that fits an algorithm, the same every time."""
    if algorithm.startswith(("RS", "PS")):
        return RSAKey.generate_key(2048)
    if algorithm.startswith("ES"):
        return ECKey.generate_key({"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm])
    return OKPKey.generate_key("Ed25519")


def public(algorithm: str, **members: Any) -> dict[str, Any]:
    return {**key_of(algorithm).as_dict(private=False), **members}


def key_set(*keys: dict[str, Any]) -> bytes:
    return orjson.dumps({"keys": keys})


def signed(claims: object = None, algorithm: str = "ES256", key: Key | None = None, **header: Any) -> str:
    payload = claims if isinstance(claims, bytes) else orjson.dumps(CLAIMS if claims is None else claims)
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = 100_000
    return jws.serialize_compact(
        {"alg": algorithm, **header}, payload, key or key_of(algorithm), registry=registry
    )


def validator_of(*keys: dict[str, Any], **settings: Any) -> JwtValidator:
    ring = KeyRing(lambda: None)
    ring.replace(parse_key_set(key_set(*keys)))
    return JwtValidator(JwtSettings(**settings), ring)
