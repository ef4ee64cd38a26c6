"""What the first bytes of somebody who does not speak the protocol tell."""

from __future__ import annotations

import pytest

from millrace.broker.network.first_bytes import hint_from


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1", b"POST /metrics", b"HEAD / HTTP/1.0"])
def test_http_is_sent_to_the_port_of_its_own(request_line: bytes) -> None:
    hint = hint_from(request_line)
    assert hint is not None
    assert "HTTP" in hint


def test_a_tls_handshake_on_a_plaintext_listener_is_recognised() -> None:
    hint = hint_from(b"\x16\x03\x01\x02\x00")
    assert hint is not None
    assert "TLS" in hint


@pytest.mark.parametrize("first_bytes", [b"", b"G", b"\x00\x00\x00\x20\x00\x12", b"\x7f\xff\xff\xff"])
def test_bytes_that_say_nothing_give_no_hint(first_bytes: bytes) -> None:
    assert hint_from(first_bytes) is None
