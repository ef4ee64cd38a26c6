"""What certificates say: names as Java writes them, hosts, and when they end. Does no I/O.

A name is written by RFC 2253, the last part first: `CN=a,OU=b,C=c`. An attribute that this RFC has no word
for is its number and the value's bytes in hexadecimal, as in `1.2.840.113549.1.9.1=#1603612e62`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.security.errors import InvalidDistinguishedName, InvalidTlsMaterial

if TYPE_CHECKING:
    from cryptography import x509

LONG_FORM: Final = 0x80
NEEDED: Final = "TLS needs packages: pip install 'millrace[security]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """What is worth knowing of one certificate."""

    name: str
    hosts: frozenset[str]
    """The names and addresses that it is for."""
    expires_ms: int


def chain_facts(pem: bytes) -> tuple[CertificateFacts, ...]:
    """Of all certificates in a text, in their order. Raises InvalidTlsMaterial where there are none."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise InvalidTlsMaterial(f"{NEEDED} ({error})") from None

    try:
        return tuple(_facts(certificate) for certificate in x509.load_pem_x509_certificates(pem))
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension) as error:
        raise InvalidTlsMaterial(f"no certificate can be read: {error}") from None


def name_of(der: bytes) -> str:
    """The name of a certificate's holder. Raises InvalidDistinguishedName."""
    from cryptography import x509

    try:
        return _name(x509.load_der_x509_certificate(der))
    except (ValueError, IndexError, x509.InvalidVersion) as error:
        raise InvalidDistinguishedName(str(error)) from None


def pem_of_pkcs12(content: bytes, password: str | None) -> tuple[bytes, bytes]:
    """The private key, empty if there is none, and the certificates of a PKCS12 file. Raises
    InvalidTlsMaterial."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as error:
        raise InvalidTlsMaterial(f"{NEEDED} ({error})") from None

    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidTlsMaterial(f"not PKCS12, or another password: {error}") from None
    key = b""
    if found.key is not None:
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [] if found.cert is None else [found.cert]
    chain += found.additional_certs
    return key, b"".join(one.certificate.public_bytes(Encoding.PEM) for one in chain)


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    from cryptography import x509

    hosts: frozenset[str] = frozenset()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = frozenset(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        pass
    return CertificateFacts(
        name=_name(certificate),
        hosts=hosts,
        expires_ms=int(certificate.not_valid_after_utc.timestamp() * 1000),
    )


def _name(certificate: x509.Certificate) -> str:
    values = _raw_values(certificate.subject.public_bytes())
    parts: list[str] = []
    for group in certificate.subject.rdns:
        written = []
        for attribute in group:
            raw = values.pop(0)
            number = attribute.oid.dotted_string
            if attribute.rfc4514_attribute_name == number:
                written.append(f"{number}=#{raw.hex()}")
            else:
                written.append(attribute.rfc4514_string())
        parts.append("+".join(written))
    return ",".join(reversed(parts))


def _raw_values(name: bytes) -> list[bytes]:
    """The encoded values of a name's attributes, in its order: a SEQUENCE of SETs of types with values."""
    found = []
    start, stop = _content(name, 0)
    while start < stop:
        at, start = _content(name, start)
        while at < start:
            kind, at = _content(name, at)
            _, value = _content(name, kind)
            found.append(name[value:at])
    return found


def _content(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at a position begins and ends."""
    size = data[at + 1]
    begins = at + 2
    if size >= LONG_FORM:
        count = size - LONG_FORM
        size = int.from_bytes(data[begins : begins + count], "big")
        begins += count
    return begins, begins + size
