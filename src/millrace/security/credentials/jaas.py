"""Reads `sasl.jaas.config`, in which Kafka's configurations keep the users of PLAIN.

`org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob="other";`
Of the words before the options only the module's name counts for us.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.security.errors import InvalidJaasConfig

PLAIN_MODULE: Final = "PlainLoginModule"
USER_PREFIX: Final = "user_"

_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MARKS: Final = frozenset(";=")
_ENDS_OF_WORDS: Final = frozenset(";=\"'/")


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module with its options, of which the values are secrets."""

    module: str
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word, a quotation or a mark."""

    text: str
    is_mark: bool = False


def parse_jaas_config(text: str) -> JaasEntry:
    """Raises InvalidJaasConfig, also where there are several entries: Kafka takes one."""
    pieces = _pieces(text)
    module = next(pieces, None)
    if module is None or module.is_mark:
        raise InvalidJaasConfig("Login module not specified in JAAS config")
    flag = next(pieces, None)
    if flag is None or flag.is_mark:
        raise InvalidJaasConfig("Login module control flag not specified in JAAS config")
    if flag.text.upper() not in _FLAGS:
        # Not shown: where the flag was forgotten, this is an option, and may be a password.
        raise InvalidJaasConfig(
            f"Invalid login module control flag in JAAS config: it is one of {', '.join(_FLAGS)}"
        )
    options: dict[str, str] = {}
    for key in pieces:
        if key.is_mark:
            if key.text == ";":
                break
            raise InvalidJaasConfig("a value without a key in JAAS config")
        mark, value = next(pieces, None), next(pieces, None)
        if mark is None or not mark.is_mark or mark.text != "=" or value is None or value.is_mark:
            raise InvalidJaasConfig(f"Value not specified for key {_shown(key.text, options)} in JAAS config")
        options[key.text] = value.text
    else:
        raise InvalidJaasConfig("JAAS config entry not terminated by semi-colon")
    if next(pieces, None) is not None:
        raise InvalidJaasConfig("JAAS config property contains several login modules, should be 1 module")
    return JaasEntry(module.text, options)


def plain_users(entry: JaasEntry) -> dict[str, str]:
    """The passwords by user; raises InvalidJaasConfig for the entry of another module."""
    if entry.module.rpartition(".")[2] != PLAIN_MODULE:
        raise InvalidJaasConfig(f"the users of PLAIN are options of {PLAIN_MODULE}, not of {entry.module}")
    return {
        key.removeprefix(USER_PREFIX): value
        for key, value in entry.options.items()
        if key.startswith(USER_PREFIX)
    }


def _shown(key: str, before: Mapping[str, str]) -> str:
    """What may be said of a key: after a slip in the quotes a word may be a piece of a password."""
    return f"'{key}'" if key.replace("_", "").isalnum() and len(key) <= 100 else f"number {len(before) + 1}"


def _pieces(text: str) -> Iterator[_Piece]:
    at = 0
    while at < len(text):
        character = text[at]
        if character <= " ":
            at += 1
        elif character == "/":
            at = _behind_comment(text, at)
        elif character in _MARKS:
            yield _Piece(character, is_mark=True)
            at += 1
        elif character in "\"'":
            quotation, at = _quotation(text, at)
            yield _Piece(quotation)
        else:
            start = at
            while at < len(text) and text[at] > " " and text[at] not in _ENDS_OF_WORDS:
                at += 1
            yield _Piece(text[start:at])


def _behind_comment(text: str, at: int) -> int:
    """A slash begins a comment, with `/*` up to `*/` and otherwise up to the end of the line."""
    end = text.find("*/", at + 2) if text.startswith("/*", at) else text.find("\n", at)
    if end < 0:
        return len(text)
    return end + 2 if text.startswith("/*", at) else end + 1


def _quotation(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    at += 1
    found: list[str] = []
    while at < len(text):
        character = text[at]
        at += 1
        if character == quote:
            return "".join(found), at
        if character == "\n":
            break
        if character != "\\":
            found.append(character)
            continue
        octal = at
        while (
            at < len(text)
            and at < octal + 3
            and text[at] in "01234567"
            and int(text[octal : at + 1], 8) < 256
        ):
            at += 1
        if at > octal:
            found.append(chr(int(text[octal:at], 8)))
        elif at < len(text):
            found.append(_ESCAPES.get(text[at], text[at]))
            at += 1
    raise InvalidJaasConfig("a quotation in JAAS config has no end")
