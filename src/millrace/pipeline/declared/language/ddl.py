"""Schemas as SQL writes them (`id BIGINT, tags ARRAY<STRING>`), checked without Spark."""

from __future__ import annotations

import contextlib
from typing import Final, NoReturn

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest
from millrace.pipeline.declared.language.sql_text import Token, tokenize

_SIMPLE: Final = frozenset(
    {"boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real"}
    | {"double", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "string", "binary", "void"}
    | {"decimal", "dec", "numeric", "char", "character", "varchar", "time", "variant", "interval"}
)
_NESTED: Final = ("array", "map", "struct")
TYPES: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, varchar(n), binary, date, "
    "timestamp, timestamp_ntz, variant, array<...>, map<...,...>, struct<name: type, ...>"
)
# Words of an interval's type, such as INTERVAL DAY TO SECOND.
_INTERVAL_WORDS: Final = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "TO")


def check_ddl(text: str, begin: Mark, mistakes: Mistakes, *, where: str) -> list[str]:
    """Check a schema and return the names of its columns; what is wrong goes to `mistakes`."""
    before = len(mistakes.found)
    tokens = tokenize(text, begin, mistakes)
    if len(mistakes.found) > before:
        return []
    return _Parser(tokens, begin, mistakes, where).columns()


def check_type(text: str, begin: Mark, mistakes: Mistakes, *, where: str) -> None:
    """Check one type, such as what a function returns."""
    before = len(mistakes.found)
    tokens = tokenize(text, begin, mistakes)
    if len(mistakes.found) == before:
        _Parser(tokens, begin, mistakes, where).only_type()


class _Stop(Exception):
    """The rest cannot be understood; the mistake is noted."""


class _Parser:
    def __init__(self, tokens: list[Token], begin: Mark, mistakes: Mistakes, where: str) -> None:
        self._tokens = tokens
        self._begin = begin
        self._mistakes = mistakes
        self._where = where
        self._next = 0

    def columns(self) -> list[str]:
        names: list[str] = []
        with contextlib.suppress(_Stop):
            self._columns(names, closer=None)
        return names

    def only_type(self) -> None:
        try:
            self._type("the type")
            if (rest := self._peek()) is not None:
                self._fail(rest, f"{rest.text!r} behind the type")
        except _Stop:
            pass

    def _columns(self, names: list[str], closer: str | None) -> None:
        while True:
            name = self._take("a column's name")
            if name.kind not in ("word", "quoted"):
                self._fail(name, f"{name.text!r} is no column's name", "NAME TYPE, NAME TYPE, ...")
            if name.name.casefold() in (each.casefold() for each in names):
                self._mistakes.add(name.mark, f"{self._where}: the column {name.name!r} is here twice")
            names.append(name.name)
            if (colon := self._peek()) is not None and colon.text == ":":
                self._next += 1
            self._type(f"the type of {name.name!r}")
            self._attributes()
            separator = self._peek()
            if separator is None or separator.text == closer:
                return
            if separator.text != ",":
                self._fail(
                    separator, f"{separator.text!r} behind the column {name.name!r}", "',' or NOT NULL"
                )
            self._next += 1

    def _type(self, wanted: str) -> None:
        token = self._take(wanted)
        word = token.text.casefold()
        if token.kind != "word" or (word not in _SIMPLE and word not in _NESTED):
            what = f"{self._where}: {token.text!r} is not a type"
            if token.kind == "word":
                meant = closest(word, (*sorted(_SIMPLE), *_NESTED)) or ""
                self._mistakes.add(token.mark, what, allowed=TYPES, meant=meant)
            else:
                self._mistakes.add(token.mark, what, allowed=TYPES)
                raise _Stop
            return
        if word in _NESTED:
            self._nested(word)
        elif word == "interval":
            while (part := self._peek()) is not None and part.is_word(*_INTERVAL_WORDS):
                self._next += 1
        elif (opened := self._peek()) is not None and opened.text == "(":
            while self._take("')'").text != ")":
                pass

    def _nested(self, word: str) -> None:
        opened = self._peek()
        if word == "struct" and opened is not None and opened.text == "<>":
            # Spark takes a struct without fields; to the tokenizer its brackets are one symbol.
            self._next += 1
            return
        self._expect("<", f"{word.upper()}")
        if word == "struct":
            following = self._peek()
            if following is None or following.text != ">":
                self._columns([], closer=">")
        else:
            self._type(f"the type inside {word.upper()}<")
            if word == "map":
                self._expect(",", "the key's type of MAP<")
                self._type("the type of the values of MAP<")
        self._expect(">", f"{word.upper()}<...")

    def _attributes(self) -> None:
        while (token := self._peek()) is not None and token.is_word("NOT", "NULL", "COMMENT", "COLLATE"):
            self._next += 2 if token.is_word("COMMENT", "COLLATE") else 1

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, wanted: str) -> Token:
        token = self._peek()
        if token is None:
            last = self._tokens[-1].mark if self._tokens else self._begin
            self._mistakes.add(last, f"{self._where}: the schema ends where {wanted} should be")
            raise _Stop
        self._next += 1
        return token

    def _expect(self, symbol: str, behind: str) -> None:
        token = self._take(f"'{symbol}' behind {behind}")
        if token.text != symbol:
            self._fail(token, f"{token.text!r} behind {behind}", f"'{symbol}'")

    def _fail(self, token: Token, what: str, allowed: str = "") -> NoReturn:
        self._mistakes.add(token.mark, f"{self._where}: {what}", allowed=allowed)
        raise _Stop
