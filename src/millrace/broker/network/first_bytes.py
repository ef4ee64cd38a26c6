"""What somebody who does not speak the protocol most likely wanted, told by the first bytes that came."""

from __future__ import annotations

from typing import Final

_HTTP: Final = "this looks like HTTP: the HTTP endpoints have a port of their own"
_HINTS: Final = {
    b"\x16\x03": "these are the first bytes of TLS: does the client use SSL on a plaintext listener?",
    b"GE": _HTTP,
    b"PO": _HTTP,
    b"HE": _HTTP,
}


def hint_from(first_bytes: bytes) -> str | None:
    """A sentence for the log, or None where the bytes say nothing."""
    return _HINTS.get(first_bytes[:2])
