"""Every mistake in a pipeline's file is said with its line, what is wrong, what is allowed or meant."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from millrace.pipeline.declared.check.check import examine_file, load, name_in
from millrace.pipeline.declared.language.mistakes import InvalidPipeline, Mistake, line_of

EXAMPLES = Path(__file__).parents[5] / "examples" / "pipelines"

GOOD = """\
pipeline: orders
bootstrap.servers: 127.0.0.1:9092
trigger: every 10 seconds
functions:
  clean:
    call: tools:clean
    returns: string
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, amount double, at timestamp
    watermark: at 10 minutes
  people:
    files: people.csv
    schema: id bigint, name string
steps:
  big:
    deduplicate: id
    sql: SELECT id, amount, at FROM orders WHERE amount > 10
  named: |
    SELECT b.id, clean(p.name) AS name,
           b.amount
    FROM big b
    JOIN people p ON b.id = p.id
sinks:
  out:
    from: named
    topic: big-orders
    key: name
"""


def mistakes_in(folder: Path, text: str, name: str = "p.yaml") -> list[Mistake]:
    (folder / "tools.py").write_text("def clean(name):\n    return name\n")
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return examine_file(path, environment={"HOME": "/", "PGHOST": "db"})[1]


def test_a_file_without_mistakes_has_none(tmp_path: Path) -> None:
    assert mistakes_in(tmp_path, GOOD) == []


# What is replaced in the good file, by what, the line of the mistake, and words of its message.
MISTAKES = [
    ("pipeline: orders", "pipelin: orders", 1, "unknown key 'pipelin'; did you mean 'pipeline'?"),
    ("pipeline: orders", "pipeline: my orders", 1, "'my orders' is no name for a pipeline"),
    ("127.0.0.1:9092", "127.0.0.1", 2, "'127.0.0.1' is not an address; allowed: HOST:PORT"),
    ("127.0.0.1:9092", "a:70000", 2, "'a:70000' is not an address"),
    ("127.0.0.1:9092", "${BROKER}", 2, "the environment has no variable 'BROKER'"),
    ("127.0.0.1:9092", "${PGHST}:1", 2, "no variable 'PGHST'; did you mean 'PGHOST'?"),
    ("every 10 seconds", "evry 10 seconds", 3, "trigger cannot be 'evry 10 seconds'; did you mean 'every"),
    ("every 10 seconds", "every ten seconds", 3, "trigger cannot be 'every ten seconds'"),
    ("tools:clean", "tool:clean", 6, "there is no module 'tool'; did you mean 'tools'?"),
    ("tools:clean", "tools:cleann", 6, "defines no 'cleann'; did you mean 'clean'?"),
    ("  clean:", "  Upper:", 5, "Spark has a function Upper of its own, which would be called instead"),
    ("  clean:", "  mask:", 5, "allowed: another name, such as my_mask or mask_value"),
    ("tools:clean", "clean", 6, "call 'clean' names no function; allowed: MODULE:FUNCTION"),
    ("returns: string", "returns: strng", 7, "'strng' is not a type; did you mean 'string'?"),
    ("returns: string", "kind: row", 5, "'returns' is missing"),
    ("returns: string", "returns: string\n    kind: rows", 8, "kind cannot be 'rows'; did you mean 'row'?"),
    ("topic: orders", "topik: orders", 10, "unknown key 'topik'; did you mean 'topic'?"),
    ("topic: orders", "topic: a/b", 10, "'a/b' is no topic's name; allowed: 1 to 249"),
    ("topic: orders", "topic: orders\n    files: x.csv", 9, "topic and files together"),
    ("topic: orders\n", "\n", 9, "nothing says where the rows come from; allowed: topic, topics, pattern"),
    ("topic: orders", "pattern: a(", 10, "pattern 'a(' is no regular expression"),
    ("topic: orders", "topic: [orders, {a: b}]", 10, "topic cannot be a list; allowed: a list of names"),
    ("format: json", "format: jsn", 11, "format cannot be 'jsn'; did you mean 'json'?"),
    ("format: json", "format: raw", 12, "a schema has no use with format raw; allowed: json, avro"),
    ("format: json", "format: avro", 12, "not an Avro schema in JSON"),
    ("format: json", "format: json\n    message: M", 12, "'message' is for format protobuf only"),
    ("format: json", "format: json\n    dead_letters: orders", 12, "dead_letters is the topic that is read"),
    ("format: json", "format: json\n    starting: first", 12, "starting cannot be 'first'; "),
    ("format: json", "format: json\n    options: {maxOffsetPerTrigger: 5}", 12, "did you mean maxOffsets"),
    ("format: json", "format: json\n    options: {maxOffsetsPerTrigger: x}", 12, "must be a whole number"),
    ("format: json", "format: json\n    stream: maybe", 12, "stream cannot be 'maybe'; allowed: true, false"),
    ("schema: id bigint, amount", "schema_file: no.json #", 12, "schema_file no.json: No such file"),
    ("schema: id bigint, amount double, at timestamp", "", 11, "format json needs a schema"),
    ("amount double", "amount doubel", 12, "'doubel' is not a type; did you mean 'double'?"),
    ("amount double", "amount", 12, "',' is not a type"),
    ("amount double", "id double", 12, "the column 'id' is here twice"),
    ("amount double", "amount array<double", 12, "behind ARRAY<..."),
    ("at 10 minutes", "att 10 minutes", 13, "the watermark's column 'att' is not in the schema; did you"),
    ("at 10 minutes", "at ten minutes", 13, "is not a column and a delay; allowed: COLUMN DELAY"),
    ("people.csv", "people", 15, "the format of people is not clear from its name; allowed: parquet"),
    ("people.csv", "people.csv\n    format: cvs", 16, "format cannot be 'cvs'; did you mean 'csv'?"),
    ("schema: id bigint, name string", "stream: true", 16, "files read as a stream need a schema"),
    ("files: people.csv", "jdbc: postgres://db", 15, "'postgres://db' is no JDBC address"),
    ("files: people.csv", "jdbc: jdbc:postgresql://db/x", 14, "neither table nor query"),
    ("steps:", "step:", 17, "unknown key 'step'; did you mean 'steps'?"),
    ("deduplicate: id", "dedupe: id", 19, "unknown key 'dedupe'; did you mean 'deduplicate'?"),
    ("SELECT id, amount", "SELCT id, amount", 20, "cannot begin with 'SELCT'; did you mean 'SELECT'?"),
    (
        "FROM orders WHERE",
        "FROM order WHERE",
        20,
        "there is no source or step 'order'; did you mean 'orders'?",
    ),
    ("amount > 10", "(amount > 10", 20, "'(' is never closed"),
    ("amount > 10", "amount > 10)", 20, "')' closes nothing"),
    ("amount > 10", "name = 'x", 20, "a text that begins with ' and is never closed"),
    ("amount > 10", "amount > 10; SELECT 1", 20, "a second statement behind ';'"),
    ("JOIN people p", "JOIN peopel p", 25, "no source or step 'peopel'; did you mean 'people'?"),
    ("FROM big b", "FROM named b", 21, "steps read each other in a circle: named -> named"),
    ("  named: |", "  ORDERS: |", 21, "'ORDERS' has the name of 'orders'"),
    ("  named: |", "  na-med: |", 21, "'na-med' is no name for SQL"),
    ("from: named", "from: name", 28, "there is no source or step 'name'; did you mean 'named'?"),
    ("from: named\n", "\n", 27, "nothing says which rows are written; allowed: from: STEP or sql: SELECT"),
    ("from: named", "from: named\n    sql: SELECT 1", 27, "from and sql together"),
    ("topic: big-orders", "topc: big-orders", 29, "unknown key 'topc'; did you mean 'topic'?"),
    ("topic: big-orders", "topic: orders", 27, "writes to the topic 'orders' that sources.orders reads"),
    ("topic: big-orders", "topic: x\n    mode: complet", 30, "mode cannot be 'complet'; did you mean"),
    ("topic: big-orders", "topic: x\n    mode: complete", 30, "mode complete is not possible for topic"),
    (
        "topic: big-orders",
        "topic: x\n    delivery: exactly",
        30,
        "delivery cannot be 'exactly'; did you mean",
    ),
    (
        "topic: big-orders",
        "topic: x\n    options: {compresion.type: lz4}",
        30,
        "did you mean 'compression.type'",
    ),
    (
        "topic: big-orders",
        "topic: x\n    options: {compression.type: lzma}",
        30,
        "must be none, gzip, snappy",
    ),
    ("topic: big-orders", "topic: x\n    format: avro", 30, "format avro needs a schema"),
    (
        "topic: big-orders\n    key: name",
        "delta: x\n    mode: update",
        30,
        "mode update is not possible for delta",
    ),
    (
        "topic: big-orders\n    key: name",
        "console: true\n    rows: 0",
        30,
        "rows cannot be '0'; allowed: a whole",
    ),
    (
        "topic: big-orders\n    key: name",
        "jdbc: jdbc:derby:x\n    mode: update\n    table: t",
        30,
        "mode update needs 'key'",
    ),
    ("topic: big-orders\n    key: name", "jdbc: jdbc:derby:x", 27, "'table' is missing"),
    (
        "topic: big-orders\n    key: name",
        "console: true\n    mode: complete",
        27,
        "complete needs an aggregation",
    ),
    ("sinks:", "sinkz:", 26, "unknown key 'sinkz'; did you mean 'sinks'?"),
    ("  out:\n", "  out:\n    from: big\n", 29, "'from' is here twice, first on line 28"),
    ("  out:\n", "  o t:\n", 27, "'o t' is no name for a sink"),
    ("  big:\n", "  big: [1]\n  x:\n", 18, "steps.big cannot be a list; allowed: a table of keys"),
    ("key: name", "key: [name", 31, "not YAML"),
    ("    key: name", "\tkey: name", 30, "tabs do not indent in YAML"),
]


@pytest.mark.parametrize("before, after, line, words", MISTAKES)
def test_each_mistake_is_said_with_its_line(
    before: str, after: str, line: int, words: str, tmp_path: Path
) -> None:
    assert GOOD.count(before) >= 1, before
    found = mistakes_in(tmp_path, GOOD.replace(before, after, 1))
    said = [f"{each.mark.line}: {each.text()}" for each in found if not each.warning]
    assert any(text.startswith(f"{line}: ") and words in text for text in said), "\n".join(said)


def test_all_mistakes_of_a_file_are_said_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = GOOD
    for before, after in (
        ("every 10 seconds", "evry 10 seconds"),
        ("amount double", "amount doubel"),
        ("FROM orders WHERE", "FROM order WHERE"),
        ("topic: big-orders", "topic: x\n    mode: complet"),
    ):
        text = text.replace(before, after)
    found = mistakes_in(tmp_path, text)
    assert [each.mark.line for each in found if not each.warning] == [3, 12, 20, 30]


def test_a_mistake_reads_like_a_compilers(tmp_path: Path) -> None:
    (found,) = mistakes_in(tmp_path, GOOD.replace("key: name", "kee: name"))
    assert line_of(Path("p.yaml"), found).startswith(
        "p.yaml:30: sinks.out: unknown key 'kee'; did you mean 'key'?"
    )


def test_a_broken_part_is_not_blamed_on_those_who_use_it(tmp_path: Path) -> None:
    """`orders` is misspelt inside, but it is there: the steps that read it have no mistake of their own."""
    found = mistakes_in(tmp_path, GOOD.replace("    topic: orders", "    topik: orders"))
    assert [each.mark.line for each in found] == [10]


WARNINGS = [
    ("    watermark: at 10 minutes\n", "", "deduplication without a watermark remembers every row for ever"),
    ("from: named", "from: orders", "no sink uses this step"),
    (
        "    from: named\n    topic: big-orders\n    key: name",
        "    from: big\n    console: true",
        "no sink uses",
    ),
    ("  people:\n", "  other:\n    topic: other\n  people:\n", "sources.other: no sink uses this source"),
]


@pytest.mark.parametrize("before, after, words", WARNINGS)
def test_what_is_hardly_meant_is_a_warning_that_stops_nothing(
    before: str, after: str, words: str, tmp_path: Path
) -> None:
    found = mistakes_in(tmp_path, GOOD.replace(before, after, 1))
    assert all(each.warning for each in found), [each.text() for each in found]
    text = "\n".join(each.text() for each in found)
    assert words in text


def test_an_aggregation_that_is_only_appended_needs_a_watermark(tmp_path: Path) -> None:
    text = GOOD.replace("    watermark: at 10 minutes\n", "").replace(
        "from: named", "sql: SELECT id AS name, count(*) AS n FROM big GROUP BY id"
    )
    found = [each for each in mistakes_in(tmp_path, text) if not each.warning]
    assert "mode append of an aggregation (in sinks.out.sql) needs a watermark" in found[0].what
    assert "mode update or complete" in found[0].allowed
    assert not [each for each in mistakes_in(tmp_path, text + "    mode: update\n") if not each.warning]


def test_two_sinks_cannot_share_a_table(tmp_path: Path) -> None:
    sinks = "sinks:\n  a: {from: big, delta: lake}\n  b: {from: named, delta: lake/}\n"
    found = mistakes_in(tmp_path, GOOD[: GOOD.index("sinks:")] + sinks)
    assert any("as sinks.a does" in each.what and each.mark.line == 28 for each in found)


SQL_GOOD = """\
-- A comment with 'quotes and (brackets
CREATE PIPELINE orders WITH (trigger = 'every 10 seconds');
CREATE SOURCE orders WITH (
  topic = 'orders', format = 'json',
  schema = 'id bigint, amount double',
  options.maxOffsetsPerTrigger = 1000
);
CREATE VIEW big AS
SELECT id, amount
FROM orders
WHERE amount > 10 /* ; */;
CREATE SINK out FROM big WITH (topic = 'big-orders', key = 'id');
"""

SQL_MISTAKES = [
    ("CREATE PIPELINE", "CREATE PIPELNE", 2, "CREATE PIPELNE is unknown; did you mean 'PIPELINE'?"),
    ("CREATE SOURCE", "CRATE SOURCE", 3, "cannot begin with 'CRATE'; did you mean 'CREATE'?"),
    ("'every 10 seconds'", "always", 2, "'always' is no value for trigger; allowed: 'text' in single quotes"),
    ("topic = 'orders', format", "topic 'orders', format", 4, "behind topic; allowed: '='"),
    ("format = 'json'", "format = 'jsn'", 4, "format cannot be 'jsn'; did you mean 'json'?"),
    ("'id bigint, amount double'", "'id bigint, amount doubel'", 5, "'doubel' is not a type"),
    ("= 1000", "= 1000 x = 2", 6, "'x' behind the value of options.maxOffsetsPerTrigger; allowed: ','"),
    ("options.", "topic = 'b', options.", 6, "'topic' is here twice, first on line 4"),
    ("FROM orders", "FROM order", 10, "there is no source or step 'order'; did you mean 'orders'?"),
    (
        "CREATE VIEW big AS",
        "CREATE VIEW big SA",
        8,
        "'SA' behind CREATE VIEW is unknown; allowed: WITH ..., AS",
    ),
    ("AS\nSELECT id, amount\nFROM orders\nWHERE amount > 10 /* ; */", "", 8, "CREATE VIEW big has no query"),
    ("/* ; */", "/* ;", 11, "a comment /* that is never closed by */"),
    ("FROM big WITH", "FROM bigg WITH", 12, "there is no source or step 'bigg'; did you mean 'big'?"),
    ("key = 'id'", "kee = 'id'", 12, "unknown key 'kee'; did you mean 'key'?"),
    ("key = 'id');", "key = 'id'", 12, "the statement ends where ',' or ')' behind WITH ( should be"),
]


def test_a_sql_file_without_mistakes_has_none(tmp_path: Path) -> None:
    assert mistakes_in(tmp_path, SQL_GOOD, "p.sql") == []


@pytest.mark.parametrize("before, after, line, words", SQL_MISTAKES)
def test_each_mistake_in_sql_is_said_with_its_line(
    before: str, after: str, line: int, words: str, tmp_path: Path
) -> None:
    assert before in SQL_GOOD, before
    found = mistakes_in(tmp_path, SQL_GOOD.replace(before, after, 1), "p.sql")
    said = [f"{each.mark.line}: {each.text()}" for each in found if not each.warning]
    assert any(text.startswith(f"{line}: ") and words in text for text in said), "\n".join(said)


@pytest.mark.parametrize("name, text, words", [
    ("p.yaml", "", "the file is empty"),
    ("p.yaml", "- a\n", "the file is not a table of keys"),
    ("p.yaml", "pipeline: a\n---\npipeline: b\n", "a second document"),
    ("p.yaml", "pipeline: &a [*a]\n", "an alias inside what it stands for"),
    ("p.yaml", "pipeline: a\n", "there are no sources"),
    ("p.yaml", "pipeline: a\n", "there are no sinks"),
    ("p.sql", "-- nothing\n", "the file is empty; allowed: CREATE PIPELINE"),
    ("p.toml", "", "a pipeline's file has one of these endings; allowed: .yaml, .yml, .sql"),
])  # fmt: skip
def test_a_file_that_is_no_pipeline_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    assert any(words in each.text() for each in mistakes_in(tmp_path, text, name))


def test_files_that_cannot_be_read_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "p.yaml").write_bytes(b"pipeline: a\nsources: \xff\n")
    with pytest.raises(InvalidPipeline, match=r"p.yaml:2: not UTF-8 text"):
        load(tmp_path / "p.yaml")


def test_a_small_file_of_aliases_does_not_grow_without_bound(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert mistakes_in(tmp_path, "\n".join(lines))


def test_the_name_is_known_even_of_a_file_with_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("pipeline: orders\nsauces: {}\n")
    assert name_in(path) == "orders"


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.yaml")) + sorted(EXAMPLES.glob("*.sql")), ids=lambda p: p.name
)
def test_the_examples_have_no_mistakes(path: Path) -> None:
    pipeline, mistakes = examine_file(path, environment={})
    assert pipeline is not None, [line_of(path, each) for each in mistakes]


def test_yaml_and_sql_mean_the_same(tmp_path: Path) -> None:
    by_yaml, _ = load(EXAMPLES / "orders.yaml", environment={})
    by_sql, _ = load(EXAMPLES / "orders.sql", environment={})
    assert list(by_yaml.sources) == list(by_sql.sources)
    assert by_yaml.sources["orders"].watermark == by_sql.sources["orders"].watermark
    assert by_yaml.upstream("revenue")[1:] == by_sql.upstream("sink:revenue")[1:]
    assert by_yaml.functions["tidy_name"].returns == by_sql.functions["tidy_name"].returns
