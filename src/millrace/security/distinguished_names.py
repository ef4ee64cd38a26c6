"""Reads the names in certificates, in the form of RFC 2253: `CN=a,OU=b+OU=c,O=d\\, e`."""

from __future__ import annotations

from typing import Final

from millrace.security.errors import InvalidDistinguishedName

LENGTH_MAX: Final = 16_384
"""A certificate with a longer name is somebody's attempt to cost us time."""
_ESCAPABLE: Final = frozenset(',+"\\<>;=# ')
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def parse_distinguished_name(text: str) -> tuple[tuple[str, str], ...]:
    """Attribute types, in upper case, with their values, in the order of the text.

    Raises InvalidDistinguishedName. A value in hexadecimal (`#0401..`) stays as it is written."""
    if len(text) > LENGTH_MAX:
        raise InvalidDistinguishedName(f"it has more than {LENGTH_MAX} characters")
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        equals = text.find("=", at)
        if equals < 0:
            raise InvalidDistinguishedName(f"there is no '=' behind position {at}")
        kind = text[at:equals].strip()
        if not kind or not all(
            character.isascii() and (character.isalnum() or character in "-.") for character in kind
        ):
            raise InvalidDistinguishedName(f"the attribute type at position {at} is not one")
        value, at = _value(text, equals + 1)
        found.append((kind.upper(), value))
        if at == len(text) - 1:
            raise InvalidDistinguishedName("it ends with a separator")
        at += 1
    return tuple(found)


def values_of(text: str, kind: str) -> tuple[str, ...]:
    """The values of one attribute type, such as `OU`, each once and in the order of the text."""
    kind = kind.upper()
    return tuple(dict.fromkeys(value for found, value in parse_distinguished_name(text) if found == kind))


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at a position, and the position of the separator behind it."""
    raw = bytearray()
    solid = 0
    """How much of it may not be cut off: blanks at the end belong to the value only if they are escaped."""
    while at < len(text) and text[at] == " ":
        at += 1
    is_quoted = at < len(text) and text[at] == '"'
    if is_quoted:
        at += 1
    while at < len(text):
        character = text[at]
        if character == "\\":
            octets, at = _escaped(text, at + 1)
            raw += octets
            solid = len(raw)
            continue
        if is_quoted and character == '"':
            return _ended(text, at + 1, bytes(raw))
        if not is_quoted and character in ",+;":
            break
        raw += character.encode("utf-8", "surrogatepass")
        if character != " ":
            solid = len(raw)
        at += 1
    if is_quoted:
        raise InvalidDistinguishedName("a quotation has no end")
    return _decoded(bytes(raw[:solid])), at


def _escaped(text: str, at: int) -> tuple[bytes, int]:
    """What stands behind a backslash: a character, or an octet in hexadecimal."""
    pair = text[at : at + 2]
    if pair[:1] in _ESCAPABLE and pair:
        return pair[0].encode(), at + 1
    if len(pair) == 2 and pair[0] in _HEX and pair[1] in _HEX:
        return bytes((int(pair, 16),)), at + 2
    raise InvalidDistinguishedName(f"the backslash before position {at} escapes nothing")


def _ended(text: str, at: int, raw: bytes) -> tuple[str, int]:
    while at < len(text) and text[at] == " ":
        at += 1
    if at < len(text) and text[at] not in ",+;":
        raise InvalidDistinguishedName(f"there is something behind the quotation, at position {at}")
    return _decoded(raw), at


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidDistinguishedName("a value is not UTF-8") from None
