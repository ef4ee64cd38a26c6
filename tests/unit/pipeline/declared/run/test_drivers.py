"""Drivers of databases by their address."""

from __future__ import annotations

import pytest

from millrace.pipeline.declared.run.drivers import (
    driver_of,
    missing_driver,
    options_with_driver,
    package_hint,
)


def test_a_database_is_told_by_its_address_in_any_case() -> None:
    found = driver_of("jdbc:PostgreSQL://db:5432/shop")
    assert found is not None
    assert (found.name, found.package.rpartition(":")[0]) == (
        "org.postgresql.Driver",
        "org.postgresql:postgresql",
    )
    assert driver_of("jdbc:oracle:thin:@db") is None


def test_what_was_given_goes_before_what_the_driver_needs() -> None:
    assert options_with_driver("jdbc:sqlite:x.db", {"numPartitions": "4", "user": "u"}) == {
        "driver": "org.sqlite.JDBC",
        "numPartitions": "4",
        "user": "u",
    }


@pytest.mark.parametrize("url, package", [
    ("jdbc:mysql://db/x", "com.mysql:mysql-connector-j:VERSION"),
    ("jdbc:unheard:x", "GROUP:ARTIFACT:VERSION"),
])  # fmt: skip
def test_the_package_of_a_driver_that_is_not_there_is_named(url: str, package: str) -> None:
    assert f"packages: [{package}]" in package_hint(url)


def test_only_a_missing_driver_is_explained() -> None:
    found = missing_driver(RuntimeError("java.lang.ClassNotFoundException: com.x.Driver"), "jdbc:mariadb://d")
    assert found is not None
    assert found.startswith("there is no driver for mariadb databases")
    assert missing_driver(RuntimeError("password authentication failed"), "jdbc:mariadb://d") is None
