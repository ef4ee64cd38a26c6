"""The keys that tokens are verified with: a JSON Web Key Set (RFC 7517), and when to ask for a newer one.

Only public keys of asymmetric algorithms are taken. With a shared secret everybody who can verify a token
could make one, and a token must not choose between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millrace.security.errors import InvalidKeySet
from millrace.security.jwt.segments import InvalidSegment, decode_segment, parse_object

if TYPE_CHECKING:
    from joserfc.jwk import Key

ALGORITHMS: Final = {
    **{
        f"{family}{bits}": kind
        for family, kind in (("RS", "RSA"), ("PS", "RSA"), ("ES", "EC"))
        for bits in (256, 384, 512)
    },
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}
"""Those that are accepted, with the type of key that each needs. `none` and the symmetric ones are not."""

KEY_SET_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 1_000
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
"""A longer one costs us more than it protects."""

KEY_ID_LENGTH_MAX: Final = 1_000
"""A token with a longer key id is malformed: nobody is asked for such a key, and it is not remembered."""
UNKNOWN_KEY_IDS_MAX: Final = 16
REFRESH_PER_KEY_ID_MS: Final = 60_000
REFRESH_MS_MIN: Final = 1_000
"""Between any two. Kafka has no such bound, so a client with many invented key ids could have it ask the
provider without end."""

_PUBLIC_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One public key."""

    key_id: str | None
    kind: str
    """Its type: RSA, EC or OKP."""
    algorithm: str | None
    """The only one that it may be used with, if its owner said so."""
    key: Key = field(repr=False, compare=False)

    def fits(self, algorithm: str) -> bool:
        return ALGORITHMS[algorithm] == self.kind and self.algorithm in (None, algorithm)


def parse_key_set(content: bytes) -> tuple[VerificationKey, ...]:
    """The usable keys of a key set, or InvalidKeySet if there are none. Others are passed over, as RFC 7517
    asks for: a provider may publish keys of kinds that we do not know."""
    if len(content) > KEY_SET_BYTES_MAX:
        raise InvalidKeySet(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    try:
        members = parse_object(content)
    except InvalidSegment as error:
        raise InvalidKeySet(str(error)) from None
    described = members.get("keys")
    if not isinstance(described, list):
        raise InvalidKeySet("it has no list of keys")
    if len(described) > KEYS_MAX:
        raise InvalidKeySet(f"it has more than {KEYS_MAX} keys")
    keys = tuple(key for key in map(_parse_key, described) if key is not None)
    if not keys:
        raise InvalidKeySet("none of its keys can verify a token")
    return keys


class KeyRing:
    """The keys of one provider, as far as they are known, and the asking for newer ones."""

    def __init__(self, ask_refresh: Callable[[], None]) -> None:
        """`ask_refresh` fetches the key set in the background and hands it to `replace`."""
        self._ask_refresh = ask_refresh
        self._keys: tuple[VerificationKey, ...] = ()
        self._asked_ms: dict[str, int] = {}
        """For key ids that nobody knows: when a refresh was asked for. The last is the one wanted last."""
        self._refreshed_ms: int | None = None

    def replace(self, keys: Iterable[VerificationKey]) -> None:
        """Take a newer key set in place of all keys."""
        self._keys = tuple(keys)
        for key in self._keys:
            if key.key_id is not None:
                self._asked_ms.pop(key.key_id, None)

    def find(self, key_id: str | None, algorithm: str, now_ms: int) -> VerificationKey | None:
        """The key of this id for this algorithm, or the only key where a token names none.

        If it is not there, a refresh may be asked for: the next token with it may find it."""
        fitting = [key for key in self._keys if key.fits(algorithm)]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        for key in fitting:
            if key.key_id == key_id:
                return key
        self._miss(key_id, now_ms)
        return None

    def _miss(self, key_id: str, now_ms: int) -> None:
        if len(key_id) > KEY_ID_LENGTH_MAX:
            return
        asked_ms = self._asked_ms.pop(key_id, None)
        is_due = asked_ms is None or not 0 <= now_ms - asked_ms < REFRESH_PER_KEY_ID_MS
        last_ms = self._refreshed_ms
        if is_due and last_ms is not None and 0 <= now_ms - last_ms < REFRESH_MS_MIN:
            # Not remembered as asked for: the next token with this key id, a second later, gets its refresh.
            return
        self._asked_ms[key_id] = now_ms if is_due or asked_ms is None else asked_ms
        if len(self._asked_ms) > UNKNOWN_KEY_IDS_MAX:
            del self._asked_ms[next(iter(self._asked_ms))]
        if is_due:
            self._refreshed_ms = now_ms
            self._ask_refresh()


def _parse_key(described: object) -> VerificationKey | None:
    """None for everything that is not a public key for signatures."""
    if not isinstance(described, dict):
        return None
    kind, key_id, algorithm = described.get("kty"), described.get("kid"), described.get("alg")
    operations = described.get("key_ops")
    if (
        not isinstance(kind, str)
        or kind not in _PUBLIC_MEMBERS
        or not (key_id is None or isinstance(key_id, str))
        or not (algorithm is None or ALGORITHMS.get(str(algorithm)) == kind)
        or described.get("use") not in (None, "sig")
        or not (operations is None or (isinstance(operations, list) and "verify" in operations))
    ):
        return None
    # A private key has no business here. If one is there all the same, its secret is not even read.
    public = {name: described.get(name) for name in _PUBLIC_MEMBERS[kind]}
    if not all(isinstance(value, str) for value in public.values()) or not _is_sized(kind, public):
        return None
    key = _import_key({"kty": kind, **public})
    return None if key is None else VerificationKey(key_id, kind, algorithm, key)


def _is_sized(kind: str, public: dict[str, Any]) -> bool:
    if kind != "RSA":
        return True
    try:
        modulus = int.from_bytes(decode_segment(public["n"]), "big")
    except InvalidSegment:
        return False
    return RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX


def _import_key(public: dict[str, Any]) -> Key | None:
    # Loaded on first use: few brokers have clients with tokens.
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    try:
        key = JWKRegistry.import_key(public)
        # Computed now and kept, so that threads that share the key find it complete.
        _ = key.public_key
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key
