"""An authority of one's own, and certificates of it: ECDSA on P-256, at half of what RSA costs a broker."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS: Final = 3650
DAYS: Final = 365
BACKDATED: Final = timedelta(minutes=5)
"""Clocks of clients may be behind ours."""


class NoPackage(click.ClickException):
    def __init__(self) -> None:
        super().__init__(
            "certificates need the package cryptography: install it with pip install 'millrace[security]'"
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def together(self) -> bytes:
        """Both in one file, as Kafka's PEM stores have it."""
        return self.key + self.certificate


def require_package() -> None:
    """Raises NoPackage, before anything was written."""
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError:
        raise NoPackage from None


def make_authority(name: str, now: datetime, days: int = AUTHORITY_DAYS) -> Pair:
    """A certificate that signs others, and itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    subject = _named(name)
    builder = (
        _builder(subject, subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: Pair, name: str, hosts: Sequence[str], now: datetime, days: int = DAYS
) -> Pair:
    """A certificate for a broker at these hosts, or for a client, which has none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = load_pem_private_key(authority.key, password=None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey), type(signing)
    key = _new_key()
    # A broker is a client of the others.
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = (
        _builder(_named(name), issuer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        builder = builder.add_extension(names, critical=False)
    return _pair(builder.sign(signing, hashes.SHA256()), key)


def hosts_of(certificate: bytes) -> list[str]:
    """The hosts that a certificate is for."""
    from cryptography import x509

    # The file may begin with the key.
    found = x509.load_pem_x509_certificates(certificate[certificate.index(b"-----BEGIN CERTIFICATE") :])[0]
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    begin = now.astimezone(UTC) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
