"""How connections are secured: options by the names of librdkafka and its Python client, TLS and SASL.

Secrets never appear in messages or representations.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.client.errors import (
    BrokerRefused,
    ConnectionFailed,
    InvalidOption,
    LoginFailed,
    NotReached,
    NotTrusted,
)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SCRAM_ITERATIONS_MAX: Final = 1_000_000
"""A broker that asks for more would keep this process busy for no reason."""

SECURITY_OPTIONS: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """How to connect: plainly or by TLS, and as whom."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def tls_context(self) -> ssl.SSLContext | None:
        """What to wrap sockets with; None for connections without TLS."""
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.check_hostname = self.check_hostname
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
        except (OSError, ssl.SSLError) as error:
            raise InvalidOption(f"the TLS files cannot be used: {error}") from error
        return context


PLAINTEXT: Final = SecurityOptions()


def read_security(options: Mapping[str, str]) -> SecurityOptions:
    """The security options among `options`, checked; their names may carry the prefix `kafka.`."""
    values = {name: _option(options, name) for name in SECURITY_OPTIONS}
    protocol = (values["security.protocol"] or "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidOption(f"security.protocol={protocol}: must be one of {', '.join(PROTOCOLS)}")
    mechanism = values["sasl.mechanism"] or values["sasl.mechanisms"]
    if protocol.startswith("SASL_"):
        mechanism = (mechanism or "PLAIN").upper()
        if mechanism not in MECHANISMS:
            raise InvalidOption(f"sasl.mechanism={mechanism}: must be one of {', '.join(MECHANISMS)}")
        for name in ("sasl.username", "sasl.password"):
            if values[name] is None:
                raise InvalidOption(f"security.protocol={protocol} needs {name}")
    elif mechanism is not None or values["sasl.username"] is not None:
        raise InvalidOption(
            f"sasl options are given, but security.protocol is {protocol}: use SASL_PLAINTEXT or SASL_SSL"
        )
    _check_tls_options(values, protocol)
    identification = values["ssl.endpoint.identification.algorithm"]
    if identification not in (None, "", "none", "https"):
        raise InvalidOption(f"ssl.endpoint.identification.algorithm={identification}: must be https or none")
    return SecurityOptions(
        protocol=protocol,
        mechanism=mechanism,
        username=values["sasl.username"],
        password=values["sasl.password"],
        ca_file=values["ssl.ca.location"],
        certificate_file=values["ssl.certificate.location"],
        key_file=values["ssl.key.location"],
        key_password=values["ssl.key.password"],
        check_hostname=identification in (None, "https"),
    )


def _option(options: Mapping[str, str], name: str) -> str | None:
    plain, prefixed = options.get(name), options.get(f"kafka.{name}")
    if plain is not None and prefixed is not None and plain != prefixed:
        raise InvalidOption(f"{name} and kafka.{name} are both given and differ")
    return prefixed if plain is None else plain


def _check_tls_options(values: Mapping[str, str | None], protocol: str) -> None:
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        location = values[name]
        if location is None:
            continue
        if not protocol.endswith("SSL"):
            raise InvalidOption(f"{name} is given, but security.protocol is {protocol}: use SSL or SASL_SSL")
        if not Path(location).is_file():
            raise InvalidOption(f"{name}={location}: there is no such file")


def secured(plain: socket.socket, host: str, address: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection that speaks TLS from now on; closes the plain one if that fails.

    Raises NotTrusted or ConnectionFailed."""
    try:
        return _wrapped(plain, host, tls)
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(address, error.verify_message) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(f"TLS with {address} failed: {error.reason or error}") from error
    except OSError as error:
        raise NotReached(address, error.strerror or str(error)) from error


def _wrapped(plain: socket.socket, host: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


class SaslClient:
    """The client's half of an authentication: `first` is sent, then `answer` for what the broker says."""

    def __init__(self, security: SecurityOptions, nonce: str | None = None) -> None:
        assert security.mechanism is not None
        assert security.username is not None
        assert security.password is not None
        self.mechanism = security.mechanism
        self._username = security.username
        self._password = security.password
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        self._expected_signature: bytes | None = None

    def first(self) -> bytes:
        if self.mechanism == "PLAIN":
            return f"\0{self._username}\0{self._password}".encode()
        return f"n,,{self._first_bare()}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """What to send next, None when the broker has proved itself and nothing is left to say."""
        if self.mechanism == "PLAIN":
            return None
        try:
            if self._expected_signature is None:
                return self._prove(challenge)
            signature = base64.b64decode(_scram_fields(challenge).get("v", ""))
        except (ValueError, KeyError) as error:
            raise LoginFailed(f"what the broker says in SCRAM is malformed: {error}") from error
        if not hmac.compare_digest(signature, self._expected_signature):
            raise LoginFailed("the broker could not prove that it knows the password's hash")
        return None

    def _first_bare(self) -> str:
        name = self._username.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self._nonce}"

    def _prove(self, challenge: bytes) -> bytes:
        fields = _scram_fields(challenge)
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginFailed("the broker's nonce does not continue ours")
        if not 0 < iterations <= _SCRAM_ITERATIONS_MAX:
            raise LoginFailed(f"the broker asks for {iterations} SCRAM iterations")
        algorithm = _SCRAM_HASHES[self.mechanism]
        salted = hashlib.pbkdf2_hmac(
            algorithm, self._password.encode(), base64.b64decode(fields["s"]), iterations
        )
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        final = f"c=biws,r={nonce}"
        message = f"{self._first_bare()},{challenge.decode()},{final}".encode()
        signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), message, algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected_signature = hmac.digest(
            hmac.digest(salted, b"Server Key", algorithm), message, algorithm
        )
        return f"{final},p={base64.b64encode(proof).decode()}".encode()


def _scram_fields(message: bytes) -> dict[str, str]:
    fields = dict(part.split("=", 1) for part in message.decode().split(",") if "=" in part)
    if "e" in fields:
        raise BrokerRefused(58, f"SCRAM: {fields['e']}")
    return fields
