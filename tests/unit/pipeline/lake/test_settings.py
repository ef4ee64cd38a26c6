"""Settings of a session hold for a block, whatever happens in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from millrace.pipeline.lake.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Configuration:
    def __init__(self, **values: str) -> None:
        self.values = values

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        del self.values[name]


class Session:
    def __init__(self, **values: str) -> None:
        self.conf = Configuration(**values)


@pytest.mark.parametrize("before", [{}, {"a": "old"}])
def test_what_was_set_before_is_set_again_also_after_a_failure(before: dict[str, str]) -> None:
    session = Session(**before)
    spark = cast("SparkSession", session)
    with setting(spark, "a", "new"):
        assert session.conf.values == {"a": "new"}
    assert session.conf.values == before
    with pytest.raises(ValueError, match="inside"), setting(spark, "a", "new"):
        raise ValueError("inside")
    assert session.conf.values == before
