"""One table over an archive and the live topic: below the border the archive, from it on the broker.

The border of a partition is what the archive's ledger says at one version of the table. We read that same
version, so that a record is neither in both parts nor in none, whatever is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from millrace.client.errors import InvalidOption
from millrace.client.security import SECURITY_OPTIONS
from millrace.pipeline.lake import topics
from millrace.pipeline.lake.archive import read_ranges
from millrace.pipeline.lake.errors import RecordsLost, TopicRecreated
from millrace.pipeline.lake.table import ArchiveTable, TableState
from millrace.pipeline.lake.topics import BrokerOptions, TopicBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_OPTIONS: Final = ("archive", "subscribe", "bootstrap.servers", "kafka.bootstrap.servers", "includeHeaders")
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which offsets of a topic come from where: (from, to) of each partition."""

    topic: str
    version: int
    archived: Mapping[int, tuple[int, int]]
    live: Mapping[int, tuple[int, int]]


def read_with_archive(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Archive and topic as one table, with the columns of `format("millrace")`.

    Options: `archive` (folder or URL), `subscribe` (topics, separated by commas), `bootstrap.servers`,
    `includeHeaders`, and those for security.
    """
    root, names, broker = _checked(options)
    wanted = [
        name for name in COLUMNS if name != "headers" or _is_true(options.get("includeHeaders", "false"))
    ]
    parts = [joined(spark, cover(spark, root, name, broker), root, broker) for name in names]
    return reduce(lambda one, other: one.unionByName(other), parts).select(*wanted)


def cover(spark: SparkSession, root: str, topic: str, broker: BrokerOptions) -> Coverage:
    """Decide what comes from where. Raises RecordsLost if some records are in neither."""
    table = ArchiveTable(spark, root, topic)
    with broker.client() as client:
        for _ in range(_ATTEMPTS - 1):
            state = table.state()
            try:
                return _coverage(topic, state, topics.topic_bounds(client, topic))
            except RecordsLost:
                # The archive may have taken them between our two looks.
                if table.state().version == state.version:
                    raise
        return _coverage(topic, table.state(), topics.topic_bounds(client, topic))


def joined(spark: SparkSession, coverage: Coverage, root: str, broker: BrokerOptions) -> DataFrame:
    """The rows that a coverage names."""
    archived = ArchiveTable(spark, root, coverage.topic).read(coverage.version).select(*COLUMNS)
    if not coverage.live:
        return archived
    live = read_ranges(spark, broker, coverage.topic, coverage.live).select(*COLUMNS)
    return archived.unionByName(live)


def broker_options(options: Mapping[str, str]) -> BrokerOptions:
    """The brokers that options of the data source name."""
    names = ("bootstrap.servers", "kafka.bootstrap.servers")
    servers = next((options[name] for name in names if options.get(name)), None)
    if servers is None:
        raise InvalidOption("bootstrap.servers is missing: HOST:PORT of a broker")
    security = {
        name: options[name]
        for plain in SECURITY_OPTIONS
        for name in (plain, f"kafka.{plain}")
        if name in options
    }
    return BrokerOptions(bootstrap=servers, properties=security)


def _coverage(topic: str, state: TableState, bounds: TopicBounds) -> Coverage:
    ledger = state.ledger
    if ledger.topic_id not in ("", bounds.topic_id):
        raise TopicRecreated(
            f"topic {topic} was deleted and created again after it was archived: its offsets mean other"
            " records now, so archive and topic cannot be read as one"
        )
    live: dict[int, tuple[int, int]] = {}
    for partition, end in bounds.end.items():
        border, start = ledger.next.get(partition, 0), bounds.start[partition]
        if border < start:
            raise RecordsLost(
                f"offsets {border} to {start - 1} of {topic}-{partition} are neither in the archive nor in"
                " the topic any more"
            )
        if border < end:
            live[partition] = (border, end)
    archived = {
        partition: (ledger.first[partition], end)
        for partition, end in ledger.next.items()
        if ledger.first[partition] < end
    }
    return Coverage(topic=topic, version=state.version, archived=archived, live=live)


def _checked(options: Mapping[str, str]) -> tuple[str, list[str], BrokerOptions]:
    known = {*_OPTIONS, *SECURITY_OPTIONS, *(f"kafka.{name}" for name in SECURITY_OPTIONS)}
    unknown = sorted(name for name in options if name not in known)
    if unknown:
        raise InvalidOption(
            f"read_with_archive knows no option {', '.join(unknown)}; it reads all there is, filter the"
            f" result instead. Known: {', '.join(_OPTIONS)}, and those for security"
        )
    for name in ("archive", "subscribe"):
        if not options.get(name):
            raise InvalidOption(f"{name} is missing")
    names = [name.strip() for name in options["subscribe"].split(",") if name.strip()]
    return options["archive"], names, broker_options(options)


def _is_true(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"includeHeaders={text}: must be true or false")
    return text.lower() == "true"
