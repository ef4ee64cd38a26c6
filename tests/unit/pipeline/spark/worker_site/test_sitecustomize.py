"""What runs first in every worker: Spark's archive comes last, and nobody's own module is hidden."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from millrace.pipeline.spark import worker_path

SITE = Path(worker_path.__file__).parent / "worker_site"


def run(monkeypatch: pytest.MonkeyPatch, *path: str) -> list[str]:
    monkeypatch.setattr(sys, "path", [str(SITE), *path])
    runpy.run_path(str(SITE / "sitecustomize.py"))
    return list(sys.path)


def test_the_archive_of_spark_comes_behind_all_else_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, "/x", "/spark/python/lib/pyspark.zip", "/py4j.zip", "/site-packages")
    assert found == ["/x", "/py4j.zip", "/site-packages", "/spark/python/lib/pyspark.zip"]


def test_a_module_of_this_name_that_ours_hides_is_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.path.append('/seen')\n")
    assert run(monkeypatch, str(tmp_path)) == [str(tmp_path), "/seen"]
