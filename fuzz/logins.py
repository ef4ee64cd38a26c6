"""Throws damaged tokens at everything that reads what comes before a login:
`python -m fuzz.logins --seconds 60 [--seed N] [--only TEXT]`.

What must hold: whatever is sent is taken or refused, in little time, and lets nobody in. So all that is sent
is right in its form and wrong in its secret before it is damaged.
"""

from __future__ import annotations

import base64
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final, NamedTuple

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from joserfc.jwk import ECKey, OKPKey, RSAKey

from fuzz.command_line import fuzz
from fuzz.decoders import SECONDS_FREE, SECONDS_PER_MEGABYTE, Fault
from fuzz.frames import damaged
from millrace.core.errors import MillraceError
from millrace.security.certificates import name_of
from millrace.security.credentials.jaas import parse_jaas_config
from millrace.security.credentials.passwords import ConfiguredUsers, PasswordCheck, StoredUsers
from millrace.security.credentials.scram import Decoys, ScramCredential, ScramMechanism, derive_credential
from millrace.security.distinguished_names import parse_distinguished_name
from millrace.security.jwt.keys import KeyRing, parse_key_set
from millrace.security.jwt.urls import check_redirect, check_url
from millrace.security.jwt.validation import JwtSettings, JwtValidator
from millrace.security.mapping_rules import parse_mapping_rules
from millrace.security.principals import user
from millrace.security.sasl.exchange import Answer, Exchange, Success, Work
from millrace.security.sasl.oauthbearer import OAuthBearerExchange
from millrace.security.sasl.plain import PlainExchange
from millrace.security.sasl.scram import ScramExchange, TokenLogin

NOW_MS: Final = 1_700_000_000_000
SEPARATORS: Final = (
    b",",
    b"=",
    b"\0",
    b"\x01",
    b".",
    b"\\",
    b'"',
    b"/",
    b"=2C",
    b"$1",
    b"{",
    b"[",
    b"\xff",
    b"n,,",
)


class LetIn(Exception):
    """Somebody got in who knew no secret."""


class Target(NamedTuple):
    label: str
    sound: Callable[[random.Random], bytes]
    """Bytes of the right form."""
    take: Callable[[bytes], object]
    """Raises MillraceError or nothing."""


class _Store:
    """One user and one token."""

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        return _credential(mechanism) if name == "alice" else None

    def token(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        return TokenLogin(user("alice"), now_ms, _credential(mechanism)) if token_id == "token" else None

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        raise AssertionError((mechanism, token_id, credential))


@cache
def _credential(mechanism: ScramMechanism) -> ScramCredential:
    return derive_credential(mechanism, "a secret that nobody sends", salt=b"salt" * 5, iterations=4096)


def all_targets() -> Iterator[Target]:
    configured = ConfiguredUsers({"alice": "a secret that nobody sends"})
    stored = StoredUsers(_Store().credential, Decoys(b"key"))
    yield Target("PLAIN against the configuration", _plain, partial(_take_plain, configured))
    yield Target("PLAIN against the store", _plain, partial(_take_plain, stored))
    for mechanism in ScramMechanism:
        yield Target(f"{mechanism.label} first message", _scram_first, partial(_take_scram, mechanism))
        final = partial(_take_scram, mechanism, b"n,,n=alice,r=abc")
        yield Target(f"{mechanism.label} final message", _scram_final, final)
    yield Target("OAUTHBEARER", _oauth, lambda data: _logs_in(OAuthBearerExchange(_validator()), data))
    yield Target("JWT", _foreign_token, _take_token)
    yield Target("JWT claims", _claims, _take_claims)
    yield Target("JWKS", _key_set, parse_key_set)
    yield Target("distinguished name", _name, lambda data: parse_distinguished_name(_text(data)))
    yield Target("distinguished name by rules", _name, _map_name)
    yield Target("certificate", lambda chance: chance.choice(_certificates()), _take_certificate)
    yield Target("mapping rules", _rules, lambda data: parse_mapping_rules(_text(data)).name_of("CN=a,OU=b"))
    yield Target("JAAS", _jaas, lambda data: parse_jaas_config(_text(data)))
    yield Target("URL", _url, _take_url)


def _logs_in(exchange: Exchange, *tokens: bytes) -> None:
    for token in tokens:
        step = exchange.respond(token, NOW_MS)
        answer: Answer = step.then(step.run()) if isinstance(step, Work) else step
        if isinstance(answer, Success):
            raise LetIn(str(answer.identity))


def _take_plain(passwords: PasswordCheck, data: bytes) -> None:
    _logs_in(PlainExchange(passwords), data)


def _take_scram(mechanism: ScramMechanism, *tokens: bytes) -> None:
    _logs_in(ScramExchange(mechanism, _Store(), Decoys(b"key"), random.Random(1)), *tokens)


@cache
def _private_keys() -> dict[str, Any]:
    return {
        "RS256": RSAKey.generate_key(2048),
        "ES256": ECKey.generate_key("P-256"),
        "Ed25519": OKPKey.generate_key("Ed25519"),
    }


@cache
def _validator() -> JwtValidator:
    ring = KeyRing(lambda: None)
    keys = [{**key.as_dict(private=False), "kid": name} for name, key in _private_keys().items()]
    ring.replace(parse_key_set(orjson.dumps({"keys": keys})))
    return JwtValidator(JwtSettings(groups_claim="realm.roles"), ring)


def _take_token(data: bytes) -> None:
    begun = _validator().begin(_text(data), NOW_MS)
    if callable(begun) and hasattr(verdict := begun(), "subject"):
        raise LetIn(str(verdict))


def _take_claims(data: bytes) -> None:
    """Claims that are signed by the right key: here anything may be let in, and nothing may fail."""
    from joserfc import jws

    key = _private_keys()["Ed25519"]
    token = jws.serialize_compact({"alg": "Ed25519", "kid": "Ed25519"}, data, key, algorithms=["Ed25519"])
    begun = _validator().begin(token, NOW_MS)
    if callable(begun):
        begun()


def _map_name(data: bytes) -> None:
    rules = parse_mapping_rules(r"RULE:^CN=((?:\\.|[^,\\])*)(,.*)?$/$1/L, RULE:(.*?)=(.*)/$2$1/U, DEFAULT")
    rules.identity_of(_text(data), groups_attribute="OU")


def _take_url(data: bytes) -> None:
    url = _text(data)
    with suppress(MillraceError):
        check_redirect("https://idp.example/a/b", url, [url], followed=0)
    check_url(url, [url], are_files_allowed=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# Bytes of the right form.


def _plain(chance: random.Random) -> bytes:
    return (
        chance.choice((b"", b"alice"))
        + b"\0"
        + chance.choice((b"alice", b"bob"))
        + b"\0"
        + chance.randbytes(8).hex().encode()
    )


def _scram_first(chance: random.Random) -> bytes:
    extension = chance.choice(("", ",tokenauth=true", ",x=y"))
    header, name = chance.choice(("n,,", "n,a=alice,")), chance.choice(("alice", "token", "a=2Cb"))
    return f"{header}n={name},r=abc{extension}".encode()


def _scram_final(chance: random.Random) -> bytes:
    exchange = ScramExchange(ScramMechanism.SHA_256, _Store(), Decoys(b"key"), random.Random(1))
    challenge = exchange.respond(b"n,,n=alice,r=abc", NOW_MS)
    nonce = challenge.data.decode().split(",")[0]  # type: ignore[union-attr]
    return f"c=biws,{nonce},p={base64.b64encode(chance.randbytes(chance.choice((32, 64)))).decode()}".encode()


def _oauth(chance: random.Random) -> bytes:
    extension = chance.choice((b"", b"key=value\x01"))
    return b"n,a=alice,\x01auth=Bearer " + _foreign_token(chance) + b"\x01" + extension + b"\x01"


def _foreign_token(chance: random.Random) -> bytes:
    """Of the right form, with a signature of chance."""
    algorithm = chance.choice((*_private_keys(), "none", "HS256"))
    size = {"RS256": 256, "none": 0}.get(algorithm, 64)
    header = {"alg": algorithm, "kid": chance.choice((*_private_keys(), "x" * 1001)), "typ": "JWT"}
    parts = (orjson.dumps(header), _claims(chance), chance.randbytes(size))
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def _claims(chance: random.Random) -> bytes:
    claims = {"sub": "alice", "exp": NOW_MS // 1000 + 60, "iat": 1, "nbf": 0.5, "scope": ["a", "b"]}
    return orjson.dumps(
        {**claims, "realm": {"roles": chance.choice((["a"], "a", []))}, "aud": chance.choice(("a", []))}
    )


def _key_set(chance: random.Random) -> bytes:
    key = chance.choice(list(_private_keys().values()))
    return orjson.dumps(
        {"keys": [{**key.as_dict(private=False), "kid": "a", "use": "sig", "key_ops": ["verify"]}]}
    )


def _name(chance: random.Random) -> bytes:
    return chance.choice(
        (rb"CN=a\, b,OU=c+OU=\C3\A4,O=d", b'CN="a, b",OU= c ;1.2.3=#0401', "CN=ä,OU=日本".encode())
    )


def _take_certificate(data: bytes) -> None:
    with warnings.catch_warnings():
        # Of what the library will refuse one day, such as a serial number of 0.
        warnings.simplefilter("ignore")
        name_of(data)


@cache
def _certificates() -> tuple[bytes, ...]:
    """With names of several forms: words, numbers that have none, several in one part."""
    key = ec.generate_private_key(ec.SECP256R1())
    began = datetime(2026, 1, 1, tzinfo=UTC)
    names = (
        [x509.NameAttribute(NameOID.COMMON_NAME, "a, b"), x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c")],
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "\u65e5\u672c" * 30)],
        [x509.NameAttribute(x509.ObjectIdentifier("1.2.3.4"), "odd")] * 3,
    )
    return tuple(
        x509.CertificateBuilder()
        .subject_name(x509.Name(name))
        .issuer_name(x509.Name(name))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=9))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
        for name in names
    )


def _rules(chance: random.Random) -> bytes:
    return chance.choice((b"RULE:^CN=(.*?),OU=(.*)$/$1@$2/L, DEFAULT", rb"RULE:[^\]\/]+/\$$0/U,DEFAULT"))


def _jaas(chance: random.Random) -> bytes:
    return b"a.PlainLoginModule required /* x */ user_a=\"b\\n\\101\" c='d'; // " + chance.randbytes(2)


def _url(chance: random.Random) -> bytes:
    return chance.choice(
        (b"https://idp.example:8443/keys?a=b#c", b"file:///etc/keys", b"https://[fe80::1%25x]/")
    )


def damaged_text(data: bytes, chance: random.Random) -> bytes:
    """With separators where none belong, without those that do, with pieces repeated, or as a frame is."""
    if chance.random() < 0.3:
        return damaged(data, chance)
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                found[at:at] = chance.choice(SEPARATORS) * chance.choice((1, 1, 2, 500))
            case 1:
                del found[at : at + chance.randint(1, 3)]
            case 2:
                found[at:at] = found[chance.randrange(len(found) + 1) :]
            case _:
                found = found.replace(chance.choice(SEPARATORS), chance.choice(SEPARATORS))
        del found[100_000:]
    return bytes(found)


def find_fault(target: Target, data: bytes) -> Fault | None:
    """Feed it, and say what went wrong, if anything did."""
    # Of this thread: what else the machine does meanwhile is not the fault of what is tried.
    started = time.thread_time()
    try:
        target.take(data)
    except MillraceError:
        pass
    except BaseException as error:  # noqa: BLE001 - finding these is the purpose
        return Fault(target.label, f"{type(error).__name__}: {error}", data)
    took = time.thread_time() - started
    if took > SECONDS_FREE + SECONDS_PER_MEGABYTE * len(data) / 1e6:
        return Fault(target.label, f"took {took:.2f} s", data)
    return None


def run(seconds: float, seed: int, only: str = "") -> tuple[int, list[Fault]]:
    """Fuzz all targets in turn until the time is up; how often, and the faults found."""
    return run_targets(all_targets(), seconds, seed, only)


def run_targets(
    all_of_them: Iterator[Target], seconds: float, seed: int, only: str
) -> tuple[int, list[Fault]]:
    """The same for any targets."""
    chance = random.Random(seed)
    targets = [target for target in all_of_them if only.lower() in target.label.lower()]
    deadline = time.monotonic() + seconds
    tried = 0
    faults: list[Fault] = []
    while targets and time.monotonic() < deadline and len(faults) <= 20:
        for target in targets:
            sound = target.sound(chance)
            for data in (sound, *(damaged_text(sound, chance) for _ in range(10))):
                tried += 1
                if fault := find_fault(target, data):
                    faults.append(fault)
    return tried, faults


def main() -> int:
    return fuzz(run, about=__doc__, what="logins", unit="tokens", example="SCRAM")


if __name__ == "__main__":
    sys.exit(main())
