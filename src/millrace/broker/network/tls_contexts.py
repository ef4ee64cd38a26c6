"""Builds the TLS of a listener from its files: TLS 1.2 and 1.3, ciphers with forward secrecy alone, no
compression and no renegotiation. Blocks: for a thread, or before the loop has much to do."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from millrace.security.certificates import CertificateFacts, chain_facts, pem_of_pkcs12
from millrace.security.errors import InvalidTlsMaterial
from millrace.security.tls import PKCS12, KeyStore, TlsSettings, TrustStore

SAFE_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_STANDARD_NAME: Final = re.compile(r"TLS_(EC)?DHE_(RSA|ECDSA)_WITH_(\w+)")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFICATION: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_JKS: Final = b"\xfe\xed\xfe\xed"
_DER: Final = b"\x30"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the stores hold, as PEM."""

    keys: bytes = field(repr=False)
    """The private key and the chain of certificates."""
    password: str | None = field(repr=False)
    authorities: bytes | None
    facts: tuple[CertificateFacts, ...]
    """Of the chain, the broker's own first."""


class DirectSslObject(ssl.SSLObject):
    """Has the methods that are called for each record of TLS as they are in C. Those of Python's class only
    call them: a batch of 1 MB is 64 records, and each was three calls more."""

    read: Any
    write: Any
    pending: Any

    @classmethod
    def _create(cls, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        made: Any = super()._create(*args, **kwargs)  # type: ignore[misc]
        inner = getattr(made, "_sslobj", None)
        if inner is not None:
            made.read, made.write, made.pending = inner.read, inner.write, inner.pending
        return cast("ssl.SSLObject", made)


def load_material(settings: TlsSettings) -> Material:
    """Read the stores. Raises InvalidTlsMaterial, which names files and shows nothing of a key."""
    keys, password = _keys(settings.keys)
    facts = chain_facts(keys)
    authorities = _authorities(settings.trust)
    if authorities is not None:
        _ = chain_facts(authorities)
    return Material(keys=keys, password=password, authorities=authorities, facts=facts)


def build_context(settings: TlsSettings, material: Material) -> ssl.SSLContext:
    """Raises InvalidTlsMaterial for keys and certificates that do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = DirectSslObject
    versions = [_VERSIONS[name] for name in settings.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= (
        ssl.OP_NO_COMPRESSION
        | ssl.OP_NO_RENEGOTIATION
        | ssl.OP_CIPHER_SERVER_PREFERENCE
        | ssl.OP_SINGLE_ECDH_USE
        | ssl.OP_SINGLE_DH_USE
    )
    ciphers = ":".join(_openssl_name(name) for name in settings.cipher_suites if not _is_of_13(name))
    try:
        context.set_ciphers(ciphers or SAFE_CIPHERS)
    except ssl.SSLError:
        raise InvalidTlsMaterial(f"ssl.cipher.suites: OpenSSL knows none of {ciphers}") from None
    context.verify_mode = _VERIFICATION[settings.client_auth]
    try:
        if material.authorities is not None:
            context.load_verify_locations(cadata=material.authorities.decode("ascii", "ignore"))
        with _as_file(material.keys) as path:
            # Never without a password: OpenSSL would ask for one at the terminal.
            context.load_cert_chain(path, password=material.password or "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not readable, or encrypted and the password is another"
        raise InvalidTlsMaterial(f"the private key or its certificates: {reason}") from None
    return context


def watched_files(settings: TlsSettings) -> tuple[tuple[object, ...], ...]:
    """What tells whether a file of the stores is another than before. Blocks, for an instant."""
    found: list[tuple[object, ...]] = []
    for location in (settings.keys.location, settings.trust.location):
        if location is not None:
            try:
                status = os.stat(location)
                found.append((location, status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError as error:
                found.append((location, error.errno))
    return tuple(found)


def _keys(store: KeyStore) -> tuple[bytes, str | None]:
    if store.key is not None:
        assert store.chain is not None, "checked by the configuration"
        return f"{_as_pem(store.key)}\n{_as_pem(store.chain)}\n".encode(), store.key_password
    assert store.location is not None, "checked by the configuration"
    content = _read(store.location, "ssl.keystore.location")
    if store.kind == PKCS12:
        key, chain = pem_of_pkcs12(content, store.password)
        if not key or not chain:
            raise InvalidTlsMaterial(f"{store.location} has no private key, or no certificate")
        return key + chain, None
    _check_pem(store.location, content, "ssl.keystore.type")
    if b"PRIVATE KEY-----" not in content:
        raise InvalidTlsMaterial(f"{store.location} has no private key: it must hold the key and its chain")
    return content, store.key_password


def _authorities(store: TrustStore) -> bytes | None:
    if store.certificates is not None:
        return _as_pem(store.certificates).encode()
    if store.location is None:
        return None
    content = _read(store.location, "ssl.truststore.location")
    if store.kind == PKCS12:
        return pem_of_pkcs12(content, store.password)[1]
    _check_pem(store.location, content, "ssl.truststore.type")
    return content


def _check_pem(location: str, content: bytes, setting: str) -> None:
    if b"-----BEGIN " in content:
        return
    hint = "it has no -----BEGIN"
    if content.startswith(_JKS):
        hint = (
            "it is JKS, which only Java reads: convert it with keytool -importkeystore -deststoretype PKCS12"
        )
    elif content.startswith(_DER):
        hint = f"it may be PKCS12: then set {setting}=PKCS12"
    raise InvalidTlsMaterial(f"{location} is not PEM: {hint}")


def _as_pem(text: str) -> str:
    """PEM as settings give it: its lines may have become one, with blanks between them."""
    return re.sub(
        r"(-----BEGIN [A-Z0-9 ]+-----)(.*?)(-----END [A-Z0-9 ]+-----)",
        lambda found: f"{found[1]}\n" + "\n".join(found[2].split()) + f"\n{found[3]}\n",
        text,
        flags=re.DOTALL,
    )


def _read(location: str, setting: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise InvalidTlsMaterial(f"{setting}: {location} cannot be read: {error.strerror}") from None


def _is_of_13(name: str) -> bool:
    return name.startswith("TLS_") and "_WITH_" not in name


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher suite that is given by that of the standard."""
    match = _STANDARD_NAME.fullmatch(name)
    if match is None:
        return name
    rest = (
        match[3]
        .replace("AES_", "AES")
        .replace("_CBC", "")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    )
    return f"{match[1] or ''}DHE-{match[2]}-{rest.replace('_', '-')}"


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """OpenSSL reads keys from files alone: one in memory, or else one that only we can read."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tls")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
