"""Pipeline files in SQL: five statements around queries that Spark understands, read into the common tree.

    CREATE PIPELINE name WITH (key = value, ...);
    CREATE FUNCTION name WITH (call = 'module:function', returns = 'string');
    CREATE SOURCE name WITH (topic = 'orders', format = 'json', schema = 'id long, ...');
    CREATE VIEW name [WITH (...)] AS SELECT ...;
    CREATE SINK name [FROM view] WITH (topic = 'revenue') [AS SELECT ...];

A value is a 'text', a number, TRUE, FALSE or a list ('a', 'b'); `options.name = value` goes into `options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.pipeline.declared.language.document import Entry, Items, Node, Scalar, Table
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest
from millrace.pipeline.declared.language.sql_text import Token, tokenize

_KINDS: Final = {"FUNCTION": "functions", "SOURCE": "sources", "VIEW": "steps", "SINK": "sinks"}
_STATEMENTS: Final = "CREATE PIPELINE, CREATE FUNCTION, CREATE SOURCE, CREATE VIEW, CREATE SINK"
_NESTED: Final = ("options", "spark")


def read_sql(text: str, mistakes: Mistakes) -> Table | None:
    """The tree of a SQL file, or None if it holds no statement."""
    tokens = tokenize(text, Mark(1), mistakes)
    tree = Table(Mark(1))
    statements = _split(tokens)
    if not statements:
        if not mistakes.found:
            mistakes.add(Mark(1), "the file is empty", allowed=_STATEMENTS)
        return None
    for statement in statements:
        try:
            _Statement(text, statement, mistakes).read(tree)
        except _Broken as broken:
            mistakes.add(broken.mark, broken.what, allowed=broken.allowed, meant=broken.meant)
    return tree


def _split(tokens: list[Token]) -> list[list[Token]]:
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ";" and token.kind == "symbol":
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


@dataclass
class _Broken(Exception):
    """The rest of a statement cannot be read; the next statement can."""

    mark: Mark
    what: str
    allowed: str = ""
    meant: str = ""


class _Statement:
    def __init__(self, text: str, tokens: list[Token], mistakes: Mistakes) -> None:
        self._text = text
        self._tokens = tokens
        self._mistakes = mistakes
        self._next = 0

    def read(self, tree: Table) -> None:
        first = self._take("a statement")
        if not first.is_word("CREATE"):
            meant = "CREATE" if closest(first.text, ("CREATE",)) else ""
            raise _Broken(first.mark, f"a statement cannot begin with {first.text!r}", _STATEMENTS, meant)
        kind = self._take("what to create")
        word = kind.text.upper()
        if word != "PIPELINE" and word not in _KINDS:
            known = ["PIPELINE", *_KINDS]
            meant = closest(kind.text, known) or ""
            if meant and (following := self._peek()) is not None:
                self._add_broken(tree, meant, following)
            raise _Broken(kind.mark, f"CREATE {kind.text} is unknown", ", ".join(known), meant)
        name = self._identifier(f"the name behind CREATE {word}")
        try:
            if word == "PIPELINE":
                self._pipeline(tree, name)
            else:
                self._add(tree, _KINDS[word], name, self._body(word, name))
        except _Broken:
            self._add_broken(tree, word, name)
            raise

    def _add_broken(self, tree: Table, word: str, name: Token) -> None:
        """A statement that cannot be read still declares its name: those who use it are not to blame."""
        node = Scalar(text=name.name, kind="broken", mark=name.mark, text_mark=name.mark)
        if word == "PIPELINE":
            tree.entries.setdefault("pipeline", Entry(name.mark, node))
        else:
            self._add(tree, _KINDS[word], name, node)

    def _pipeline(self, tree: Table, name: Token) -> None:
        if "pipeline" in tree.entries:
            first = tree.entries["pipeline"].mark.line
            raise _Broken(name.mark, f"a second CREATE PIPELINE, the first is on line {first}")
        tree.entries["pipeline"] = Entry(name.mark, _scalar(name.name, "str", name.mark))
        settings = Table(name.mark)
        self._clauses(settings, "PIPELINE", ("WITH",))
        for key, entry in settings.entries.items():
            tree.entries.setdefault(key, entry)

    def _body(self, word: str, name: Token) -> Table:
        body = Table(name.mark)
        clauses = {"VIEW": ("WITH", "AS"), "SINK": ("FROM", "WITH", "AS")}.get(word, ("WITH",))
        self._clauses(body, word, clauses)
        if word == "VIEW" and "sql" not in body.entries:
            raise _Broken(name.mark, f"CREATE VIEW {name.name} has no query", "AS SELECT ...")
        return body

    def _clauses(self, body: Table, word: str, allowed: tuple[str, ...]) -> None:
        while (token := self._peek()) is not None:
            self._next += 1
            if token.is_word("WITH") and "WITH" in allowed:
                self._settings(body)
            elif token.is_word("FROM") and "FROM" in allowed:
                view = self._identifier("the view behind FROM")
                self._put(body, "from", token.mark, _scalar(view.name, "str", view.mark))
            elif token.is_word("AS") and "AS" in allowed:
                self._query(body, token)
                return
            else:
                behind = ", ".join(f"{each} ..." for each in allowed)
                meant = closest(token.text, allowed) or "" if token.kind == "word" else ""
                raise _Broken(token.mark, f"{token.text!r} behind CREATE {word} is unknown", behind, meant)

    def _query(self, body: Table, behind: Token) -> None:
        if self._peek() is None:
            raise _Broken(behind.mark, "AS without a query", "AS SELECT ...")
        first, last = self._tokens[self._next], self._tokens[-1]
        text = self._text[first.start : last.end]
        self._put(body, "sql", first.mark, _scalar(text, "str", first.mark))
        self._next = len(self._tokens)

    def _settings(self, body: Table) -> None:
        self._expect("(", "WITH")
        while True:
            token = self._take("a key or ')' behind WITH (")
            if token.text == ")":
                return
            key, mark = self._key(token), token.mark
            self._expect("=", key)
            value = self._value(key)
            outer, dot, inner = key.partition(".")
            if dot and outer in _NESTED:
                self._put_inside(body, outer, inner, mark, value)
            else:
                self._put(body, key, mark, value)
            separator = self._take("',' or ')' behind WITH (")
            if separator.text == ")":
                return
            if separator.text != ",":
                raise _Broken(separator.mark, f"{separator.text!r} behind the value of {key}", "',' or ')'")

    def _key(self, token: Token) -> str:
        if token.kind == "text":
            return token.text[1:-1]
        if token.kind not in ("word", "quoted"):
            raise _Broken(token.mark, f"{token.text!r} is no key", "key = value")
        parts = [token.name]
        while (following := self._peek()) is not None and following.text == ".":
            self._next += 1
            parts.append(self._identifier(f"the rest of the key behind {parts[-1]!r}").name)
        return ".".join(parts)

    def _value(self, key: str) -> Node:
        token = self._take(f"the value of {key}")
        if token.text == "(":
            return self._items(key, token)
        if token.kind == "text":
            return _scalar(_unquote(token.text), "str", token.mark)
        if token.kind == "number":
            return _scalar(token.text, "float" if "." in token.text else "int", token.mark)
        if token.text == "-" and (number := self._peek()) is not None and number.kind == "number":
            self._next += 1
            return _scalar("-" + number.text, "int", token.mark)
        if token.is_word("TRUE", "FALSE"):
            return _scalar(token.text.lower(), "bool", token.mark)
        raise _Broken(
            token.mark,
            f"{token.text!r} is no value for {key}",
            "'text' in single quotes, a number, TRUE, FALSE, or a list ('a', 'b')",
        )

    def _items(self, key: str, opened: Token) -> Items:
        items = Items(opened.mark)
        while True:
            items.values.append(self._value(key))
            separator = self._take(f"',' or ')' in the list of {key}")
            if separator.text == ")":
                return items
            if separator.text != ",":
                raise _Broken(separator.mark, f"{separator.text!r} in the list of {key}", "',' or ')'")

    def _add(self, tree: Table, section: str, name: Token, body: Node) -> None:
        self._put_inside(tree, section, name.name, name.mark, body)

    def _put_inside(self, table: Table, outer: str, key: str, mark: Mark, value: Node) -> None:
        """Put a value into the table `outer` inside of `table`; make `outer` if it is missing."""
        entry = table.entries.setdefault(outer, Entry(mark, Table(mark)))
        if not isinstance(entry.value, Table):
            self._mistakes.add(mark, f"{outer!r} is here twice, first on line {entry.mark.line}")
            return
        self._put(entry.value, key, mark, value)

    def _put(self, table: Table, key: str, mark: Mark, value: Node) -> None:
        if key in table.entries:
            first = table.entries[key].mark.line
            self._mistakes.add(mark, f"{key!r} is here twice, first on line {first}")
            return
        table.entries[key] = Entry(mark, value)

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, wanted: str) -> Token:
        token = self._peek()
        if token is None:
            raise _Broken(self._tokens[-1].mark, f"the statement ends where {wanted} should be")
        self._next += 1
        return token

    def _identifier(self, wanted: str) -> Token:
        token = self._take(wanted)
        if token.kind not in ("word", "quoted"):
            raise _Broken(token.mark, f"{token.text!r} where {wanted} should be", "a name")
        return token

    def _expect(self, symbol: str, behind: str) -> None:
        token = self._take(f"'{symbol}' behind {behind}")
        if token.text != symbol:
            raise _Broken(token.mark, f"{token.text!r} behind {behind}", f"'{symbol}'")


def _scalar(text: str, kind: str, mark: Mark) -> Scalar:
    return Scalar(text=text, kind=kind, mark=mark, text_mark=mark)


def _unquote(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)
