"""What a pipeline needs before Spark starts: jars for its stores and databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.pipeline.declared.check.check import examine_file, load
from millrace.pipeline.declared.check.needs import locations_of, needs_delta, packages_of
from millrace.pipeline.declared.run.drivers import missing_driver, options_with_driver

FILE = """\
pipeline: p
packages: @packages@
checkpoint: s3://bucket/checkpoints
sources:
  a: {topic: a}
  b: {jdbc: "jdbc:postgresql://db/shop", table: t}
  c: {files: "gs://data/c.parquet"}
sinks:
  s: {sql: SELECT 1 AS x FROM a, jdbc: "jdbc:sqlite:shop.db", table: t}
  d: {sql: SELECT value FROM a, parquet: out}
"""


def written(folder: Path, packages: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(FILE.replace("@packages@", packages))
    return path


def test_drivers_come_by_address_unless_the_file_names_its_own(tmp_path: Path) -> None:
    pipeline, _ = load(written(tmp_path, "[com.example:tool:1.0, 'org.xerial:sqlite-jdbc:3.40.0.0']"))
    packages = packages_of(pipeline)
    assert packages[:2] == ["com.example:tool:1.0", "org.xerial:sqlite-jdbc:3.40.0.0"]
    assert [each.rpartition(":")[0] for each in packages[2:]] == ["org.postgresql:postgresql"]


def test_all_places_of_a_pipeline_are_known(tmp_path: Path) -> None:
    pipeline, _ = load(written(tmp_path, "com.example:tool:1.0"))
    places = ["gs://data/c.parquet", str(tmp_path / "out"), "s3a://bucket/checkpoints"]
    assert locations_of(pipeline) == places
    assert not needs_delta(pipeline)


@pytest.mark.parametrize("packages", ["org.postgresql:postgresql", "'a b:c:d'"])
def test_a_package_without_its_three_parts_is_a_mistake(tmp_path: Path, packages: str) -> None:
    _, mistakes = examine_file(written(tmp_path, packages))
    assert [(each.mark.line, each.allowed[:22]) for each in mistakes] == [(2, "GROUP:ARTIFACT:VERSION")]


def test_a_known_driver_is_named_and_an_unknown_one_is_left_to_the_user() -> None:
    assert options_with_driver("jdbc:postgresql://db/x", {"user": "u"}) == {
        "driver": "org.postgresql.Driver",
        "user": "u",
    }
    # SQLite takes one writer at a time.
    assert options_with_driver("jdbc:sqlite:x.db", {})["numPartitions"] == "1"
    assert options_with_driver("jdbc:sqlite:x.db", {"driver": "my.Own"})["driver"] == "my.Own"
    assert options_with_driver("jdbc:derby:memory:x", {}) == {}


def test_a_missing_driver_is_told_from_other_errors() -> None:
    found = missing_driver(RuntimeError("java.sql.SQLException: No suitable driver"), "jdbc:oracle:thin:@db")
    assert found is not None
    assert "packages: [com.oracle.database.jdbc:ojdbc11:VERSION]" in found
    assert missing_driver(RuntimeError("connection refused"), "jdbc:oracle:thin:@db") is None
