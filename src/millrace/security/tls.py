"""What a listener's TLS is made of, as the configuration says it. Reads no files: `broker/network` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from millrace.security.mapping_rules import MappingRules

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"
CLIENT_AUTH_NONE: Final = "none"
CLIENT_AUTH_REQUIRED: Final = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """Where a private key and its certificates are: in a file, or given as PEM."""

    kind: str = PEM
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    """Of a PKCS12 file."""
    key: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    """Of an encrypted private key in PEM."""

    @property
    def is_given(self) -> bool:
        return self.location is not None or self.key is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustStore:
    """Where the certificates of trusted authorities are."""

    kind: str = PEM
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)

    @property
    def is_given(self) -> bool:
        return self.location is not None or self.certificates is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """`ssl.*` of one listener."""

    keys: KeyStore
    trust: TrustStore = field(default_factory=TrustStore)
    client_auth: str = CLIENT_AUTH_NONE
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    """Of TLS 1.2; none: those that are safe."""
    rules: MappingRules
    """From the name in a client's certificate to a principal."""
    groups_attribute: str | None = None
    are_other_names_allowed: bool = False
    """Whether a certificate may be followed by one of another name."""
    are_fewer_hosts_allowed: bool = False
    handshake_s_max: float = 10.0
    handshakes_per_s: int = 200
    """For each address."""
