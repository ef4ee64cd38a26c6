"""The parts that a token is made of: Base64 without padding, and JSON objects in it."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

import orjson

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


class InvalidSegment(ValueError):
    """Text that is not what it should be; says why, and shows nothing of it."""


def decode_segment(text: str) -> bytes:
    """Base64 in its form for URLs, without padding and in one way only; raises InvalidSegment."""
    if _SEGMENT.fullmatch(text) is None or len(text) % 4 == 1:
        raise InvalidSegment("not Base64 for URLs")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object; raises InvalidSegment."""
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise InvalidSegment("not JSON") from None
    if not isinstance(parsed, dict):
        raise InvalidSegment("not a JSON object")
    return parsed
