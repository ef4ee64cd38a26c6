"""Who may read the HTTP port: those who show its bearer token (RFC 6750)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

_SCHEME: Final = b"bearer"


class BearerGuard:
    """Compares what a request shows with the token. Keeps and shows only its hash."""

    def __init__(self, token: str) -> None:
        self._expected = _hash(token.encode())

    def replace(self, token: str) -> None:
        """From now on another token counts."""
        self._expected = _hash(token.encode())

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether exactly one Authorization header shows the token; names of headers are in lower case."""
        shown = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = shown[0].strip().partition(b" ") if len(shown) == 1 else (b"", b"", b"")
        # Hashes are of one length, so the comparison takes the same time for any token.
        is_token = hmac.compare_digest(_hash(token.strip()), self._expected)
        return is_token and scheme.lower() == _SCHEME


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
