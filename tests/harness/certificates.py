"""Certificates for tests: an authority, and what it signs. Made anew each time, on elliptic curves."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as text and as files."""

    certificate: str
    key: str
    certificate_file: Path
    key_file: Path
    both_file: Path
    """The key, then the certificate: what Kafka's `ssl.keystore.location` names."""


class Authority:
    """Signs certificates, and writes everything below a folder."""

    def __init__(self, folder: Path, name: str = "Test Authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (
            self._begun(self._name, self._key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = made.public_bytes(serialization.Encoding.PEM).decode()
        self.file = folder / "authority.pem"
        self.file.write_text(self.certificate)

    def identity(
        self,
        name: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        *,
        password: str | None = None,
        days: float = 30,
        unit: str | None = None,
    ) -> Identity:
        """For servers and clients alike; with a password the key is encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if unit is not None:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
        made = (
            self._begun(x509.Name(parts), key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        key_text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()
        text = made.public_bytes(serialization.Encoding.PEM).decode()
        files = [self._folder / f"{name}{end}" for end in (".crt", ".key", ".pem")]
        for file, content in zip(files, (text, key_text, key_text + text), strict=True):
            file.touch(mode=0o600)
            file.write_text(content)
        return Identity(text, key_text, *files)

    def _begun(self, name: x509.Name, key: ec.EllipticCurvePublicKey, days: float) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=31))
            .not_valid_after(now + dt.timedelta(days=days))
        )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
