"""Authorities and certificates for tests, as files and as text."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import trustme


class Authority:
    """Makes certificates, and files of them."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))
        self.pem = self._ca.cert_pem.bytes().decode()

    def issue(
        self,
        *hosts: str,
        name: str = "broker",
        common_name: str | None = None,
        unit: str | None = None,
        expires: dt.datetime | None = None,
    ) -> Path:
        """A file with a private key and its chain."""
        leaf = self._ca.issue_cert(
            *(hosts or ("localhost", "127.0.0.1")),
            common_name=common_name,
            organization_unit_name=unit,
            not_after=expires,
        )
        file = self._directory / f"{name}.pem"
        # In one step, as those who renew certificates do it.
        fresh = file.with_suffix(".new")
        fresh.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        fresh.replace(file)
        return file

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """TLS of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def parts(file: Path) -> tuple[str, str]:
    """The private key and the chain of a file, as text."""
    text = file.read_text()
    end = text.index("-----END", text.index("PRIVATE KEY"))
    end = text.index("\n", end) + 1
    return text[:end], text[end:]
