"""SQL as far as it can be understood without Spark: words with their lines, brackets, the tables it reads.

This module must never refuse what Spark accepts: where it is not sure it says nothing, and `--deep` asks
Spark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+ | --[^\n]*)
  | (?P<open_comment>/\*)
  | (?P<text>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
  | (?P<open_text>['"])
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<open_quoted>`)
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[A-Za-z]*)
  | (?P<word>[^\W\d]\w*)
  | (?P<symbol><=>|\|>|->|=>|<=|>=|<>|!=|==|\|\||::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BEGINNINGS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_CLOSERS: Final = {"(": ")", "[": "]"}
# Words that end the list of tables behind FROM.
_AFTER_TABLES: Final = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW"}
    | {"UNION", "INTERSECT", "EXCEPT", "MINUS", "SELECT", "LATERAL", "PIVOT", "UNPIVOT", "QUALIFY"}
)
_TABLE_WORDS: Final = frozenset({"LATERAL", "ONLY", "VALUES", "SELECT", "WITH", "FROM"})
_AGGREGATES: Final = frozenset(
    {
        "count",
        "sum",
        "avg",
        "mean",
        "min",
        "max",
        "first",
        "last",
        "collect_list",
        "collect_set",
        "approx_count_distinct",
        "stddev",
        "variance",
        "percentile",
        "percentile_approx",
        "max_by",
        "min_by",
        "any_value",
        "bool_and",
        "bool_or",
        "count_if",
    }
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a text, a number or a symbol, with its place in the file."""

    kind: str
    text: str
    mark: Mark
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    @property
    def name(self) -> str:
        """What an identifier names, without its backquotes."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(slots=True)
class Query:
    """What a query reads and does, as far as it can be told from its words."""

    tables: dict[str, Mark] = field(default_factory=dict)
    joins: int = 0
    aggregates: bool = False
    windowed: bool = False
    distinct: bool = False
    filters: bool = False


def tokenize(text: str, begin: Mark, mistakes: Mistakes) -> list[Token]:
    """Words, texts and symbols without comments; an open quote or comment ends the list with a mistake."""
    tokens: list[Token] = []
    places = _Places(text, begin)
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, (position, text[position : position + 20])
        kind, mark = str(match.lastgroup), places.at(position)
        if kind == "open_comment":
            end = _end_of_comment(text, position)
            if end is None:
                mistakes.add(mark, "a comment /* that is never closed by */")
                return tokens
            position = end
            continue
        if kind in ("open_text", "open_quoted"):
            mistakes.add(mark, f"a text that begins with {match[0]} and is never closed")
            return tokens
        if kind != "space":
            tokens.append(Token(kind, match[0], mark, position, match.end()))
        position = match.end()
    return tokens


def examine(text: str, begin: Mark, mistakes: Mistakes, *, where: str) -> Query | None:
    """Check one query and say what it reads; None if it is too broken to tell."""
    before = len(mistakes.found)
    tokens = tokenize(text, begin, mistakes)
    if len(mistakes.found) > before:
        return None
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        mistakes.add(begin, f"{where}: the query is empty", allowed="one SELECT statement")
        return None
    if not _check_shape(tokens, mistakes, where):
        return None
    return _Tables(tokens).read()


class _Places:
    """Finds the line and column of a position in a text."""

    def __init__(self, text: str, begin: Mark) -> None:
        self._begin = begin
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0

    def at(self, position: int) -> Mark:
        # Callers ask for positions in rising order.
        while self._line + 1 < len(self._starts) and self._starts[self._line + 1] <= position:
            self._line += 1
        column = position - self._starts[self._line]
        return Mark(self._begin.line + self._line, column + (self._begin.column if self._line == 0 else 1))


def _end_of_comment(text: str, position: int) -> int | None:
    """Where a comment ends, or None if nothing closes it; Spark's comments nest."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, position):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return None


def _check_shape(tokens: list[Token], mistakes: Mistakes, where: str) -> bool:
    first = tokens[0]
    if first.text != "(" and not first.is_word(*_BEGINNINGS):
        meant = closest(first.text, _BEGINNINGS) if first.kind == "word" else None
        mistakes.add(
            first.mark,
            f"{where}: a query cannot begin with {first.text!r}",
            allowed="SELECT, WITH, FROM or VALUES",
            meant=meant or "",
        )
        return False
    opened: list[Token] = []
    for token in tokens:
        if token.kind != "symbol":
            continue
        if token.text in _CLOSERS:
            opened.append(token)
        elif token.text in _CLOSERS.values():
            if not opened or _CLOSERS[opened[-1].text] != token.text:
                mistakes.add(token.mark, f"{where}: {token.text!r} closes nothing")
                return False
            opened.pop()
        elif token.text == ";":
            mistakes.add(token.mark, f"{where}: a second statement behind ';': one query is allowed here")
            return False
    for token in opened:
        mistakes.add(token.mark, f"{where}: {token.text!r} is never closed")
    return not opened


class _Tables:
    """Finds the names behind FROM and JOIN, but not behind the FROM of EXTRACT(day FROM x)."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._query = Query()
        self._defined = {name.casefold() for name in self._common_tables()}

    def read(self) -> Query:
        # For each open bracket: whether it holds a query, and whether a list of tables is going on in it.
        frames: list[list[bool]] = [[True, False]]
        for position, token in enumerate(self._tokens):
            frame = frames[-1]
            if token.text in ("(", "["):
                before, following = self._at(position - 1), self._at(position + 1)
                if before is not None and before.is_word("FROM", "JOIN"):
                    self._table(position + 1)
                frames.append([following is not None and following.is_word(*_BEGINNINGS), False])
            elif token.text in (")", "]"):
                frames.pop()
            elif token.kind == "word":
                self._word(position, token, frame)
            elif token.text == "," and frame[1]:
                self._table(position + 1)
        return self._query

    def _word(self, position: int, token: Token, frame: list[bool]) -> None:
        before = self._at(position - 1)
        if token.is_word("FROM") and frame[0] and not self._is_distinct_from(position):
            frame[1] = True
            self._table(position + 1)
        elif token.is_word("JOIN"):
            self._query.joins += 1
            self._table(position + 1)
        elif token.is_word(*_AFTER_TABLES):
            frame[1] = False
            self._query.aggregates |= token.is_word("GROUP", "HAVING")
            self._query.filters |= token.is_word("WHERE")
        elif token.is_word("DISTINCT") and before is not None and before.is_word("SELECT"):
            self._query.distinct = True
        following = self._at(position + 1)
        if following is not None and following.text == "(":
            self._query.windowed |= token.is_word("WINDOW", "SESSION_WINDOW")
            self._query.aggregates |= token.text.casefold() in _AGGREGATES and not self._is_over(position)

    def _is_over(self, position: int) -> bool:
        """Whether a function is used over a window of rows: `sum(x) OVER (...)` aggregates nothing."""
        depth = 0
        for index in range(position + 1, len(self._tokens)):
            depth += (self._tokens[index].text == "(") - (self._tokens[index].text == ")")
            if depth == 0:
                following = self._at(index + 1)
                return following is not None and following.is_word("OVER")
        return False

    def _is_distinct_from(self, position: int) -> bool:
        before, earlier = self._at(position - 1), self._at(position - 2)
        return (
            before is not None
            and before.is_word("DISTINCT")
            and earlier is not None
            and earlier.is_word("IS", "NOT")
        )

    def _table(self, position: int) -> None:
        token, following = self._at(position), self._at(position + 1)
        if token is None or token.kind not in ("word", "quoted") or token.is_word(*_TABLE_WORDS):
            return
        # A function (range(10)) or a name with dots is Spark's own business.
        if following is not None and following.text in ("(", "."):
            return
        if token.name.casefold() not in self._defined:
            self._query.tables.setdefault(token.name, token.mark)

    def _common_tables(self) -> list[str]:
        """Names that the query defines itself: WITH name AS (...), name (a, b) AS (...)."""
        names = []
        for position, token in enumerate(self._tokens):
            before = self._at(position - 1)
            if token.kind not in ("word", "quoted") or before is None:
                continue
            if not (before.is_word("WITH", "RECURSIVE") or before.text == ","):
                continue
            after = self._behind_columns(position + 1)
            opened = self._at(after + 1)
            defined = self._at(after)
            if defined is not None and defined.is_word("AS") and opened is not None and opened.text == "(":
                names.append(token.name)
        return names

    def _behind_columns(self, position: int) -> int:
        token = self._at(position)
        if token is None or token.text != "(":
            return position
        while (token := self._at(position)) is not None and token.text != ")":
            position += 1
        return position + 1

    def _at(self, position: int) -> Token | None:
        return self._tokens[position] if 0 <= position < len(self._tokens) else None
