"""Which tables a query reads is found without Spark, also where FROM means something else."""

from __future__ import annotations

import pytest

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.sql_text import Query, examine


def examined(sql: str) -> Query:
    mistakes = Mistakes()
    query = examine(sql, Mark(1), mistakes, where="q")
    assert query is not None, mistakes.found
    return query


@pytest.mark.parametrize("sql, tables", [
    ("SELECT * FROM a", ["a"]),
    ("SELECT * FROM a, b WHERE x IN (1, 2)", ["a", "b"]),
    ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN `c` USING (y)", ["a", "b", "c"]),
    ("SELECT * FROM (SELECT x FROM a) q, (b)", ["a"]),
    ("SELECT * FROM (a JOIN b USING (x))", ["a", "b"]),
    ("WITH q AS (SELECT * FROM a), r (x) AS (SELECT 1) SELECT * FROM q JOIN r", ["a"]),
    ("SELECT extract(day FROM at), trim(BOTH 'x' FROM n) FROM a", ["a"]),
    ("SELECT x IS NOT DISTINCT FROM y, x IS DISTINCT FROM z FROM a", ["a"]),
    ("SELECT 'FROM b' AS t -- FROM c\nFROM a /* FROM d /* e */ f */", ["a"]),
    ("FROM a SELECT x", ["a"]),
    ("SELECT (SELECT max(x) FROM b) FROM a WHERE EXISTS (SELECT 1 FROM c)", ["b", "a", "c"]),
    ("SELECT * FROM a LATERAL VIEW explode(xs) t AS x", ["a"]),
    ("SELECT * FROM range(10), a", ["a"]),
    ("SELECT * FROM spark_catalog.db.t JOIN a", ["a"]),
    ("SELECT * FROM VALUES (1, 2) AS t(a, b)", []),
    ("SELECT a FROM x UNION ALL SELECT b FROM y", ["x", "y"]),
    ('SELECT "its; FROM z" FROM a', ["a"]),
])  # fmt: skip
def test_tables_are_found(sql: str, tables: list[str]) -> None:
    assert sorted(examined(sql).tables) == sorted(tables)


def test_a_table_has_the_place_where_it_stands() -> None:
    query = examine("SELECT *\n  FROM\n    orders", Mark(10, 5), Mistakes(), where="q")
    assert query is not None
    assert query.tables == {"orders": Mark(12, 5)}


@pytest.mark.parametrize("sql, expected", [
    ("SELECT x, count(*) FROM a GROUP BY x", True),
    ("SELECT sum(x) FROM a", True),
    ("SELECT count(*) FILTER (WHERE x) FROM a", True),
    ("SELECT sum(x) OVER (PARTITION BY y) FROM a", False),
    ("SELECT count FROM a", False),
])  # fmt: skip
def test_aggregations_are_told_from_functions_over_rows(sql: str, expected: bool) -> None:
    assert examined(sql).aggregates is expected


def test_windows_joins_and_filters_are_seen() -> None:
    query = examined("SELECT window(at, '1 minute') FROM a JOIN b USING (x) WHERE y GROUP BY 1")
    assert (query.windowed, query.joins, query.filters, query.distinct) == (True, 1, True, False)
    assert examined("SELECT DISTINCT x FROM a").distinct
