"""TLS as a client: the context that connections are made with, from PEM files or PEM text, and the handshake
of a blocking socket."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millrace.client.errors import ConnectionFailed, InvalidOption, NotReached, NotTrusted


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Whom to trust, and which certificate to show. Of each, either a file or the text itself is given."""

    ca_file: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    """Without any, the authorities that the system trusts."""
    certificate_file: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_file: str | None = None
    """Without one, the key is in the same file as the certificate."""
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """What to make connections with; raises InvalidOption."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_pem)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.check_hostname = self.check_hostname
            self._load_identity(context)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidOption(f"the TLS certificates cannot be used: {_reason(error)}") from error
        return context

    def _load_identity(self, context: ssl.SSLContext) -> None:
        # Without a password OpenSSL would ask for one at the terminal.
        password = self.key_password or ""
        if self.certificate_pem is not None:
            text = self.certificate_pem if self.key_pem is None else f"{self.key_pem}\n{self.certificate_pem}"
            with _as_file(text) as path:
                context.load_cert_chain(path, password=password)
        elif self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file, password)


def secured(plain: socket.socket, host: str, address: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection that speaks TLS from now on; closes the plain one if that fails.

    Raises NotTrusted or ConnectionFailed."""
    try:
        return _wrapped(plain, host, tls)
    except OSError as error:
        raise handshake_failure(address, error) from error


def handshake_failure(address: str, error: OSError) -> NotTrusted | ConnectionFailed:
    """What a failed handshake means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotTrusted(address, error.verify_message)
    if isinstance(error, ssl.SSLError):
        return ConnectionFailed(f"TLS with {address} failed: {getattr(error, 'reason', None) or error}")
    return NotReached(address, error.strerror or str(error) or type(error).__name__)


def _wrapped(plain: socket.socket, host: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL takes a certificate with its key from files alone: one in memory, where systems have those."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="millrace-tls-") as folder:
            path = Path(folder) / "identity.pem"
            path.write_text(text, encoding="utf-8")
            yield str(path)
        return
    number = os.memfd_create("millrace-tls")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _reason(error: Exception) -> str:
    """Never what was in a file."""
    if isinstance(error, ssl.SSLError):
        return (
            getattr(error, "reason", None)
            or "they are no certificates in PEM, or the key's password is wrong"
        )
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return "the text is no PEM"
