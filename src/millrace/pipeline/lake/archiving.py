"""Runs archives: once up to the ends that are known at the start, or round after round until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final, Protocol

from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.pipeline.lake.archive import ArchiveOptions, Step, TopicArchive
from millrace.pipeline.lake.maintenance import Done, Upkeep, maintain
from millrace.pipeline.lake.table import ArchiveTable
from millrace.pipeline.spark.spark_errors import explain, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.client.broker_client import BrokerClient

FAILURES_MAX: Final = 10
"""Rounds in a row that may fail before a continuous archive gives up; a broker's restart must not end it."""


class Reporter(Protocol):
    """Whom an archive run tells how it goes on."""

    def planned(self, topic: str, offsets: int) -> None:
        """This many offsets wait to be archived."""

    def stepped(self, topic: str, step: Step) -> None:
        """One commit was made."""

    def maintained(self, topic: str, done: Done) -> None:
        """Upkeep did something."""

    def failed(self, topic: str, reason: str) -> None:
        """A round failed and will be tried again."""


class Pause(Protocol):
    """A `threading.Event` that somebody sets when the work shall end."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """Keeps the archives of some topics up to date, until it is stopped or has all."""

    spark: SparkSession
    topics: Sequence[str]
    options: ArchiveOptions
    upkeep: Upkeep
    reporter: Reporter
    stop: Pause
    today: Callable[[], date]
    _dropped_on: dict[str, date] = field(default_factory=dict)

    def once(self) -> None:
        """Archive what the topics hold now, then do what upkeep is due."""
        with self.options.broker.client() as client:
            for topic in self.topics:
                self._catch_up(self._opened(topic, client), client)

    def forever(self, every_s: float) -> None:
        """Archive round after round until stopped; an error that may pass is left to the next round."""
        failures = 0
        archives: dict[str, TopicArchive] = {}
        with self.options.broker.client() as client:
            while not self.stop.is_set():
                for topic in self.topics:
                    try:
                        if topic not in archives:
                            archives[topic] = self._opened(topic, client)
                        self._catch_up(archives[topic], client)
                        failures = 0
                    except Exception as error:  # told apart just below
                        failures += 1
                        if failures >= FAILURES_MAX or not _may_pass(error):
                            raise
                        # We do not know whether its last commit came through, so we ask the table again.
                        archives.pop(topic, None)
                        self.reporter.failed(topic, explain(error))
                self.stop.wait(every_s)

    def maintain_only(self) -> None:
        """Do all upkeep that is configured, whether due or not; this needs no broker."""
        for topic in self.topics:
            table = ArchiveTable(self.spark, self.options.root, topic)
            ledger = table.state().ledger
            done = maintain(self.spark, table, ledger, self.upkeep, today=self.today(), force=True)
            self.reporter.maintained(topic, done)

    def _opened(self, topic: str, client: BrokerClient) -> TopicArchive:
        archive = TopicArchive(self.spark, topic, self.options)
        archive.open(client)
        return archive

    def _catch_up(self, archive: TopicArchive, client: BrokerClient) -> None:
        bounds = archive.ends(client)
        waiting = sum(
            max(0, end - archive.ledger.next.get(partition, 0)) for partition, end in bounds.end.items()
        )
        self.reporter.planned(archive.topic, waiting)
        while not self.stop.is_set():
            step = archive.step(bounds)
            if step is None:
                break
            self.reporter.stepped(archive.topic, step)
        today = self.today()
        drop_days = self._dropped_on.get(archive.topic) != today
        done = maintain(
            self.spark, archive.table, archive.ledger, self.upkeep, today=today, drop_days=drop_days
        )
        self._dropped_on[archive.topic] = today
        archive.maintained(done.ledger)
        if done.files_joined or done.rows_dropped:
            self.reporter.maintained(archive.topic, done)


def _may_pass(error: Exception) -> bool:
    match error:
        case ConnectionFailed():
            return True
        case BrokerRefused():
            return error.retriable
        case _:
            return is_spark_error(error)
