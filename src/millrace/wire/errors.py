"""What can be wrong with bytes from the network. Knows no error codes and no connections."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class MalformedRequest(MillraceError):
    """Bytes that are no message of the announced API and version; nothing of them may be used."""


class UnknownVersion(MillraceError):
    """An API or a version of it that no schema describes."""

    def __init__(self, name: str, version: int, *, known: tuple[int, int] | None) -> None:
        allowed = "no such API is known" if known is None else f"versions {known[0]} to {known[1]} are known"
        super().__init__(f"{name} v{version}: {allowed}")
        self.version = version
        self.known = known
