"""Pipeline files in SQL become the same tree as those in YAML."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.declared.language.document import Items, Node, Scalar, Table
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.sql_file import read_sql


def plain(node: Node) -> Any:
    match node:
        case Table(entries=entries):
            return {key: plain(entry.value) for key, entry in entries.items()}
        case Items(values=values):
            return [plain(each) for each in values]
        case Scalar(kind="broken"):
            return "broken"
        case Scalar(text=text, kind="str"):
            return text
        case Scalar(text=text, kind=kind):
            return (kind, text)


def read(text: str) -> tuple[Any, list[str]]:
    mistakes = Mistakes()
    tree = read_sql(text, mistakes)
    return None if tree is None else plain(tree), [each.text() for each in mistakes.found]


def test_every_statement_has_its_section() -> None:
    tree, mistakes = read(
        """
        CREATE PIPELINE p WITH (trigger = 'always', spark.sql.shuffle.partitions = 4);
        create function clean with (call = 'tools:clean', returns = 'string');
        CREATE SOURCE `my orders` WITH (topics = ('a', 'b'), stream = FALSE, options.x = -1);
        CREATE VIEW big WITH (deduplicate = 'id') AS SELECT * FROM t WHERE a > 1.5 -- why
        ;
        CREATE SINK out FROM big WITH ('topic' = 'it''s',);
        CREATE SINK other WITH (console = true) AS SELECT 1
        """
    )
    assert mistakes == []
    assert tree == {
        "pipeline": "p",
        "trigger": "always",
        "spark": {"sql.shuffle.partitions": ("int", "4")},
        "functions": {"clean": {"call": "tools:clean", "returns": "string"}},
        "sources": {
            "my orders": {
                "topics": ["a", "b"],
                "stream": ("bool", "false"),
                "options": {"x": ("int", "-1")},
            }
        },
        "steps": {"big": {"deduplicate": "id", "sql": "SELECT * FROM t WHERE a > 1.5"}},
        "sinks": {
            "out": {"from": "big", "topic": "it's"},
            "other": {"console": ("bool", "true"), "sql": "SELECT 1"},
        },
    }


def test_the_query_knows_its_place_in_the_file() -> None:
    tree = read_sql("CREATE VIEW v\nAS\n  SELECT 1;", Mistakes())
    assert tree is not None
    views = tree.entries["steps"].value
    assert isinstance(views, Table)
    body = views.entries["v"].value
    assert isinstance(body, Table)
    query = body.entries["sql"].value
    assert isinstance(query, Scalar)
    assert (query.text, query.text_mark) == ("SELECT 1", Mark(3, 3))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\\"), max_size=30))
def test_any_text_comes_through_its_quotes(text: str) -> None:
    tree, mistakes = read("CREATE SOURCE s WITH (k = '" + text.replace("'", "''") + "')")
    assert (tree, mistakes) == ({"sources": {"s": {"k": text}}}, [])


WORDS = (
    *("CREATE", "PIPELINE", "SOURCE", "VIEW", "SINK", "WITH", "AS", "FROM", "SELECT", "a", "options", "'t'"),
    *("(", ")", ",", "=", ".", ";", "1", "-", "`b`", "/*", "sources"),
)


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_no_order_of_words_breaks_the_reader(words: list[str]) -> None:
    tree, mistakes = read(" ".join(words))
    assert tree is not None or mistakes


@pytest.mark.parametrize("text, words", [
    ("CREATE", "the statement ends where what to create should be"),
    ("CREATE SOURCE 'x' WITH (a = 1)", "where the name behind CREATE SOURCE should be"),
    ("CREATE SOURCE s WITH (a = (1 2))", "'2' in the list of a"),
    ("CREATE SOURCE s WITH (1 = 2)", "'1' is no key"),
    ("CREATE SOURCE s FROM t", "'FROM' behind CREATE SOURCE is unknown"),
    ("CREATE VIEW v AS", "AS without a query"),
    ("CREATE PIPELINE p; CREATE PIPELINE q", "a second CREATE PIPELINE, the first is on line 1"),
    ("CREATE VIEW v AS SELECT 1; CREATE VIEW v AS SELECT 2", "'v' is here twice, first on line 1"),
    ("CREATE SOURCE s WITH (options = 'x', options.a = 1)", "'options' is here twice, first on line 1"),
    ("CREATE SOURCE s WITH (options.a = 1, options = 'x')", "'options' is here twice, first on line 1"),
    ("CREATE PIPELINE p WITH (sources = 'x'); CREATE SOURCE s WITH (topic = 'a')", "'sources' is here twice"),
])  # fmt: skip
def test_what_is_wrong_with_a_statement_is_said(text: str, words: str) -> None:
    _, mistakes = read(text)
    assert any(words in each for each in mistakes), mistakes


def test_a_broken_statement_still_declares_its_name_and_the_next_one_is_read() -> None:
    tree, mistakes = read("CREATE SORCE orders WITH (x); CREATE VIEW v AS; CREATE SINK s FROM v;")
    assert tree == {"sources": {"orders": "broken"}, "steps": {"v": "broken"}, "sinks": {"s": {"from": "v"}}}
    assert len(mistakes) == 2
    assert "did you mean 'SOURCE'?" in mistakes[0]


def test_a_file_without_statements_is_empty_or_broken_but_not_both() -> None:
    assert read(" -- nothing\n;")[1][0].startswith("the file is empty")
    assert read("/* open") == (None, ["a comment /* that is never closed by */"])
