"""Drivers of databases by their JDBC address: those that we fetch on our own, and names of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Driver:
    """The class that speaks to a database, and the package that has it."""

    name: str
    group: str
    artifact: str
    version: str
    one_writer: bool = False
    """Whether the database takes one writer at a time, so that tasks must not write side by side."""

    @property
    def package(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


DRIVERS: Final = {
    "postgresql": Driver("org.postgresql.Driver", "org.postgresql", "postgresql", "42.7.14"),
    "sqlite": Driver("org.sqlite.JDBC", "org.xerial", "sqlite-jdbc", "3.53.4.0", one_writer=True),
}
# We only name these in messages: nobody has tried them.
_OTHERS: Final = {
    "mysql": "com.mysql:mysql-connector-j",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc",
    "oracle": "com.oracle.database.jdbc:ojdbc11",
}
_MISSING: Final = ("No suitable driver", "ClassNotFoundException")


def driver_of(url: str) -> Driver | None:
    return DRIVERS.get(_database(url))


def package_hint(url: str) -> str:
    """What to write into the file for a database whose driver is not there."""
    package = _OTHERS.get(_database(url), "GROUP:ARTIFACT")
    return f"add the package of its driver to the pipeline, such as packages: [{package}:VERSION]"


def missing_driver(error: Exception, url: str) -> str | None:
    """What to do about an error, if it says that the driver is not there."""
    if not any(word in str(error) for word in _MISSING):
        return None
    return f"there is no driver for {_database(url)} databases: {package_hint(url)}"


def options_with_driver(url: str, given: dict[str, str]) -> dict[str, str]:
    """Options for Spark's reader and writer: what was given, and what a known driver needs beside it."""
    driver = driver_of(url)
    if driver is None:
        return given
    known = {"driver": driver.name}
    if driver.one_writer:
        known["numPartitions"] = "1"
    return known | given


def _database(url: str) -> str:
    """`postgresql` in `jdbc:postgresql://...`."""
    return url.removeprefix("jdbc:").partition(":")[0].lower()
