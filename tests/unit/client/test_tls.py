"""Contexts from files and from text, tried by a handshake; and what a failed one means."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from millrace.client.errors import ConnectionFailed, InvalidOption, NotReached, NotTrusted
from millrace.client.tls import TlsOptions, handshake_failure, secured
from tests.harness.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def server_context(authority: Authority, *, asks: bool = True) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.identity("broker").both_file)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.file)
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> Any:
    """The names in the certificate that the server saw."""
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    seen: list[Any] = []

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as accepted:
                seen.append(accepted.getpeercert())
                accepted.sendall(b"x")
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with secured(near, host, "broker:1", client) as connection:
            assert connection.recv(1) == b"x"
    finally:
        thread.join(10)
    return [value for part in seen[0].get("subject", ()) for _, value in part]


def test_files_and_text_make_the_same_identity(authority: Authority) -> None:
    mine = authority.identity("me", password="tresor")
    ways = (
        TlsOptions(
            ca_file=str(authority.file),
            certificate_file=str(mine.certificate_file),
            key_file=str(mine.key_file),
            key_password="tresor",
        ),
        TlsOptions(ca_file=str(authority.file), certificate_file=str(mine.both_file), key_password="tresor"),
        TlsOptions(
            ca_pem=authority.certificate,
            certificate_pem=mine.certificate,
            key_pem=mine.key,
            key_password="tresor",
        ),
    )
    for way in ways:
        assert shake_hands(way.context(), server_context(authority)) == ["me"]
        assert "tresor" not in repr(way)
        assert "PRIVATE KEY" not in repr(way)


def test_a_key_leaves_no_file_behind(authority: Authority, tmp_path: Path, monkeypatch: Any) -> None:
    """Also where the system has no files in memory."""
    import os
    import tempfile

    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = authority.identity("me")
    context = TlsOptions(
        ca_pem=authority.certificate, certificate_pem=mine.certificate, key_pem=mine.key
    ).context()
    assert shake_hands(context, server_context(authority)) == ["me"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host, is_checked, is_trusted", [
    ("localhost", True, True),
    ("elsewhere", True, False),
    ("elsewhere", False, True),
])  # fmt: skip
def test_the_host_must_be_the_certificates_unless_told_otherwise(
    authority: Authority, host: str, is_checked: bool, is_trusted: bool
) -> None:
    client = TlsOptions(ca_file=str(authority.file), check_hostname=is_checked).context()
    server = server_context(authority, asks=False)
    if is_trusted:
        shake_hands_without_identity(client, server, host)
        return
    with pytest.raises(NotTrusted, match=r"certificate of broker:1 is not trusted: Hostname mismatch"):
        shake_hands_without_identity(client, server, host)


def shake_hands_without_identity(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    near, far = socket.socketpair()
    thread = threading.Thread(target=_serve_quietly, args=(server, far))
    thread.start()
    try:
        with secured(near, host, "broker:1", client) as connection:
            assert connection.recv(1) == b"x"
    finally:
        thread.join(10)


def _serve_quietly(server: ssl.SSLContext, far: socket.socket) -> None:
    try:
        with server.wrap_socket(far, server_side=True) as accepted:
            accepted.sendall(b"x")
    except OSError:
        far.close()


def test_an_unknown_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "Somebody Else")
    with pytest.raises(NotTrusted):
        shake_hands_without_identity(
            TlsOptions(ca_file=str(stranger.file)).context(),
            server_context(authority, asks=False),
            "localhost",
        )


def test_what_is_no_certificate_or_has_another_password_is_refused_without_showing_it(
    authority: Authority, tmp_path: Path
) -> None:
    mine = authority.identity("locked", password="tresor")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("geheim")
    bad = (
        TlsOptions(ca_file=str(nothing)),
        TlsOptions(ca_pem="geheim"),
        TlsOptions(certificate_file=str(nothing)),
        TlsOptions(certificate_file=str(mine.both_file), key_password="falsch"),
        # Asks nobody at the terminal.
        TlsOptions(certificate_file=str(mine.both_file)),
        TlsOptions(certificate_file=str(tmp_path / "missing")),
    )
    for options in bad:
        with pytest.raises(InvalidOption, match="the TLS certificates cannot be used") as refused:
            options.context()
        for secret in ("geheim", "falsch", "tresor"):
            assert secret not in str(refused.value)


def test_old_tls_is_not_spoken(authority: Authority) -> None:
    assert TlsOptions().context().minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("error, kind", [
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), ConnectionFailed),
    (ConnectionResetError(104, "reset"), NotReached),
])  # fmt: skip
def test_a_handshake_that_breaks_is_worth_another_try(error: OSError, kind: type[Exception]) -> None:
    assert isinstance(handshake_failure("b:1", error), kind)
