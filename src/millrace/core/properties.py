"""Reads Java's .properties format, in which Kafka's own files are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")
"""Java's line ends. `str.splitlines` knows more of them, such as the form feed, which is a blank here."""
_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\\\\)*([=: \t\f])")


def parse_properties(content: str) -> dict[str, str]:
    """Names and values. Of two lines with the same name the later counts."""
    properties = {}
    for line in _logical_lines(content):
        separator = _SEPARATOR.search(line)
        if separator is None:
            properties[_unescape(line)] = ""
            continue
        name, rest = line[: separator.start(1)], line[separator.start(1) :].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        properties[_unescape(name)] = _unescape(rest)
    return properties


def _logical_lines(content: str) -> Iterator[str]:
    """Lines without comments, with those joined that end in a backslash."""
    pending: str | None = None
    for line in _LINE_ENDS.split(content):
        text = line.lstrip(_BLANKS)
        if pending is None and (not text or text[0] in "#!"):
            continue
        text = (pending or "") + text
        backslashes = len(text) - len(text.rstrip("\\"))
        if backslashes % 2 == 1:
            pending = text[:-1]
        else:
            pending = None
            yield text
    if pending:
        yield pending


def _unescape(text: str) -> str:
    def resolve(match: re.Match[str]) -> str:
        code, character = match.groups()
        if code is not None:
            return chr(int(code, 16))
        return _ESCAPES.get(character, character)

    unescaped = _ESCAPED.sub(resolve, text)
    # Java counts in UTF-16: a character beyond 16 bits is written as two escapes.
    return unescaped.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
