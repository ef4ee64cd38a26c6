"""Certificates that OpenSSL itself accepts, for the hosts that they are for and no others."""

from __future__ import annotations

import builtins
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from millrace.cli.secure.certificates import (
    NoPackage,
    Pair,
    hosts_of,
    make_authority,
    make_certificate,
    require_package,
)

NOW = datetime.now(UTC)
HOSTS = ["localhost", "127.0.0.1", "::1", "broker.example"]


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_authority("authority", NOW)


@pytest.fixture(scope="module")
def broker(authority: Pair) -> Pair:
    return make_certificate(authority, "broker", HOSTS, NOW)


def handshake(tmp_path: Path, authority: Pair, server: Pair, name: str, client: Pair | None = None) -> Any:
    """The client's certificate as the server sees it, after a handshake in memory."""
    own = tmp_path / "server.pem"
    own.write_bytes(server.together)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(own)
    serving.load_verify_locations(cadata=authority.certificate.decode())
    asking = ssl.create_default_context(cadata=authority.certificate.decode())
    if client is not None:
        serving.verify_mode = ssl.CERT_REQUIRED
        theirs = tmp_path / "client.pem"
        theirs.write_bytes(client.together)
        asking.load_cert_chain(theirs)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = asking.wrap_bio(back, there, server_hostname=name)
    far = serving.wrap_bio(there, back, server_side=True)
    done = 0
    for _ in range(10):
        for end in (near, far):
            try:
                end.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
    assert done
    return far.getpeercert()


@pytest.mark.parametrize("host", HOSTS)
def test_a_broker_is_trusted_under_each_of_its_hosts(
    tmp_path: Path, authority: Pair, broker: Pair, host: str
) -> None:
    handshake(tmp_path, authority, broker, host)


def test_a_broker_is_not_trusted_elsewhere_or_by_others(
    tmp_path: Path, authority: Pair, broker: Pair
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, authority, broker, "other.example")
    other = make_authority("authority", NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, other, broker, "localhost")


def test_a_client_shows_who_it_is(tmp_path: Path, authority: Pair, broker: Pair) -> None:
    client = make_certificate(authority, "alice", (), NOW)
    seen = handshake(tmp_path, authority, broker, "localhost", client)
    assert seen["subject"] == ((("commonName", "alice"),),)
    # A client's certificate is none of a broker's.
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, authority, client, "localhost")


def test_a_certificate_counts_for_its_days(authority: Pair) -> None:
    made = x509.load_pem_x509_certificate(make_certificate(authority, "b", HOSTS, NOW, 30).certificate)
    assert made.not_valid_before_utc < NOW
    assert timedelta(days=29) < made.not_valid_after_utc - NOW < timedelta(days=30)


def test_hosts_are_read_back_from_a_store(broker: Pair) -> None:
    assert sorted(hosts_of(broker.together)) == sorted(HOSTS)


def test_keys_are_in_no_representation(authority: Pair) -> None:
    assert "PRIVATE" not in repr(authority)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "cryptography":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NoPackage, match=r"pip install 'millrace\[security\]'"):
        require_package()
