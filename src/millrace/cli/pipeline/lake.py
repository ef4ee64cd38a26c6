"""`millrace pipeline archive`, `replay` and `backfill`: topics in a lake, and the ways back."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.moments import parse_duration_ms
from millrace.cli.options import broker_options, json_option, key_values
from millrace.cli.output import log_line, progress
from millrace.cli.pipeline import lake_reports
from millrace.cli.pipeline.client_properties import client_properties
from millrace.cli.pipeline.spark_options import spark_options, spark_settings
from millrace.core.override import override

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.pipeline.lake.maintenance import Upkeep
    from millrace.pipeline.lake.topics import BrokerOptions

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_BOUND_HELP: Final = "a time (2026-01-31T08:00), an offset, or offsets of partitions (0:42,1:17)"


class Duration(click.ParamType[int]):
    """`90s`, `1h30m`, `7d`, as milliseconds."""

    name = "duration"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not _DURATION.fullmatch(str(value)):
            self.fail(f"{value!r} is not a duration such as 90s, 1h30m or 7d", param, ctx)
        return parse_duration_ms(str(value))


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--to", "root", required=True, metavar="URL", help="Folder or object store URL of the archive.")
@click.option("--once", is_flag=True, help="Archive what is there now and end. Otherwise it goes on.")
@click.option(
    "--every",
    "every_ms",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Pause between two rounds: shorter means fresher tables with more, smaller files.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new archive begins.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    metavar="N",
    help="The most records in one commit.",
)
@click.option("--allow-gaps", is_flag=True, help="Go on behind records that were deleted unarchived.")
@click.option(
    "--decode",
    "payload",
    type=click.Choice(["json", "avro", "protobuf"]),
    help="Decode values into columns; needs --schema.",
)
@click.option("--schema", metavar="FILE", help="The schema of values; the text itself works too.")
@click.option("--message", metavar="NAME", help="The message in a Protobuf schema.")
@click.option(
    "--compact-after",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    metavar="N",
    help="Join small files after N commits.",
)
@click.option("--no-compact", is_flag=True, help="Never join small files.")
@click.option(
    "--retention", "retention_ms", type=Duration(), help="Drop days that are older, such as 90d [keep all]."
)
@click.option(
    "--vacuum-after",
    "vacuum_ms",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Remove files that no version within this time needs; whole hours.",
)
@click.option("--no-vacuum", is_flag=True, help="Keep all files.")
@click.option("--maintain-only", is_flag=True, help="Archive nothing: join, drop and remove now.")
@spark_options
@broker_options
def archive(topics: tuple[str, ...], **options: Any) -> None:
    """Keep topics in Delta tables, one for each below URL, every record exactly once.

    You may stop or kill it at any moment; the next start goes on where the table ends.
    """
    from millrace.pipeline.lake.archive import ArchiveOptions
    from millrace.pipeline.lake.archiving import ArchiveRun
    from millrace.pipeline.lake.location import table_path

    names = list(dict.fromkeys(topics))
    for name in names:
        table_path(options["root"], name)
    broker = _broker(options)
    upkeep = _upkeep(options)
    _check_decoding(options)
    with _session(options, f"millrace archive {', '.join(names)}") as spark, _stop_signals() as stop:
        with lake_reports.archive_reporter(is_once=bool(options["once"])) as reporter:
            run = ArchiveRun(
                spark=spark,
                topics=names,
                options=ArchiveOptions(
                    root=options["root"],
                    broker=broker,
                    start=options["start"],
                    batch_records=options["batch_records"],
                    allow_gaps=options["allow_gaps"],
                    decode=_decoder(options),
                ),
                upkeep=upkeep,
                reporter=reporter,
                stop=stop,
                today=lambda: datetime.now(UTC).date(),
            )
            if options["maintain_only"]:
                run.maintain_only()
            elif options["once"]:
                run.once()
            else:
                run.forever(options["every_ms"] / 1000)
        reporter.summarise()


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option("--archive", "root", required=True, metavar="URL", help="Folder or URL of the archive.")
@click.option("--into", required=True, metavar="TOPIC", help="The topic to write to; created if missing.")
@click.option("--from", "start", default="beginning", show_default=True, help=f"beginning, {_BOUND_HELP}.")
@click.option("--to", "end", default="end", show_default=True, help=f"end, {_BOUND_HELP}; not included.")
@click.option("--no-create", is_flag=True, help="Fail if the topic to write to does not exist.")
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the topic if it is created. Repeatable. Its retention.ms is -1 unless given here.",
)
@click.option(
    "--id",
    "replay_id",
    metavar="NAME",
    help="Name of this replay. The same command, or the same name, goes on where it stopped; a new name"
    " starts anew.",
)
@click.option(
    "--compression",
    type=click.Choice(_CODECS),
    default="zstd",
    show_default=True,
    help="How records are compressed: an archive does not keep how they were.",
)
@click.option("--no-verify", is_flag=True, help="Do not compare counts and checksums at the end.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@json_option
@spark_options
@broker_options
def replay(topic: str, **options: Any) -> None:
    """Bring records of an archive back into a topic: same partitions, keys, headers, timestamps and order.

    For the state of a topic at some point in time, give that time as --to and a new topic as --into.
    """
    from millrace.pipeline.lake.ranges import parse_selection
    from millrace.pipeline.lake.replay import Replay, ReplayOptions
    from millrace.wire.compression import Codec

    work = ReplayOptions(
        root=options["root"],
        topic=topic,
        into=options["into"],
        broker=_broker(options),
        selection=parse_selection(options["start"], options["end"]),
        replay_id=options["replay_id"],
        create=not options["no_create"],
        configs=key_values(options["configs"], option="--config"),
        codec=Codec[options["compression"].upper()],
    )
    with _session(options, f"millrace replay {topic}") as spark:
        replaying = Replay(spark, work)
        if options["dry_run"]:
            lake_reports.print_replay_plan(replaying.preview(), as_json=options["as_json"])
            return
        plan = replaying.prepare()
        lake_reports.announce(plan, work.into)
        with progress(f"replay into {work.into}", total=plan.records_left) as bar:
            sent = replaying.run(plan, lambda count: bar.advance(count, note=f"{count:,} more records"))
        log_line(f"{sent:,} records sent to {work.into}")
        if not options["no_verify"]:
            log_line(f"comparing {work.into} with the archive ...")
            lake_reports.report(replaying.verify(plan), work.into, as_json=options["as_json"])


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option("--archive", "root", required=True, metavar="URL", help="Folder or URL of the archive.")
@click.option("--from", "start", default="beginning", show_default=True, help=f"beginning, {_BOUND_HELP}.")
@click.option("--to", "end", default="end", show_default=True, help=f"end, {_BOUND_HELP}; not included.")
@click.option("--output", metavar="URL", help="Write the rows there.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["delta", "parquet", "json"]),
    default="delta",
    show_default=True,
    help="Format of the output.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is at --output.")
@click.option("--sql", metavar="QUERY", help="Run a query over the view `records` instead of all rows.")
@json_option
@spark_options
@broker_options
def backfill(topic: str, **options: Any) -> None:
    """Read archive and live topic as one table, without gap or overlap.

    Without --output and --sql it shows which offsets come from where, and counts them.
    """
    from millrace.pipeline.lake.backfill import cover, joined
    from millrace.pipeline.lake.ranges import parse_selection
    from millrace.pipeline.lake.selection import selected
    from millrace.pipeline.lake.table import with_date

    broker = _broker(options)
    selection = parse_selection(options["start"], options["end"])
    with _session(options, f"millrace backfill {topic}") as spark:
        coverage = cover(spark, options["root"], topic, broker)
        rows = selected(with_date(joined(spark, coverage, options["root"], broker)), selection)
        if options["sql"]:
            rows.createOrReplaceTempView("records")
            rows = spark.sql(options["sql"])
        if options["output"]:
            _write(rows, options)
        elif options["sql"]:
            lake_reports.print_rows(rows, as_json=options["as_json"])
        else:
            lake_reports.print_coverage(coverage, rows, as_json=options["as_json"])


COMMANDS: Final = {"archive": archive, "replay": replay, "backfill": backfill}


@contextmanager
def _session(options: dict[str, Any], name: str) -> Iterator[SparkSession]:
    """A session of our own with the data source registered, stopped at the end."""
    from millrace.pipeline.spark.session import make_session

    settings = spark_settings(options)
    if options["master"].startswith("local"):
        # Delta would spread the reading of a table's log over 50 tasks.
        settings.setdefault("spark.databricks.delta.snapshotPartitions", "4")
    places = [place for place in (options["root"], options.get("output")) if place]
    spark = make_session(app_name=name, master=options["master"], config=settings, locations=places)
    try:
        from millrace.pipeline import register

        register(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """The first interrupt ends the work after the commit at hand; the second one ends it at once."""
    stop = threading.Event()

    def ask(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log_line("stopping after this commit")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _broker(options: dict[str, Any]) -> BrokerOptions:
    from millrace.pipeline.lake.topics import BrokerOptions

    return BrokerOptions(
        bootstrap=options["bootstrap"],
        properties=client_properties(options["command_config"]),
        timeout_ms=int(options["timeout_s"] * 1000),
    )


def _upkeep(options: dict[str, Any]) -> Upkeep:
    from millrace.pipeline.lake.maintenance import Upkeep

    retention_ms = options["retention_ms"]
    if retention_ms is not None and retention_ms % _DAY_MS:
        raise click.BadParameter("whole days only: rows leave by days", param_hint="'--retention'")
    if options["vacuum_ms"] % _HOUR_MS:
        what = "whole hours only, which is what Delta counts in; 0h keeps nothing but the newest version"
        raise click.BadParameter(what, param_hint="'--vacuum-after'")
    return Upkeep(
        compact_after=None if options["no_compact"] else options["compact_after"],
        retention_days=None if retention_ms is None else retention_ms // _DAY_MS,
        vacuum_hours=None if options["no_vacuum"] else options["vacuum_ms"] // _HOUR_MS,
    )


def _check_decoding(options: dict[str, Any]) -> None:
    if options["payload"] is None and (options["schema"] or options["message"]):
        raise click.UsageError("--schema and --message need --decode json, avro or protobuf")
    if options["payload"] is not None and not options["schema"]:
        raise click.UsageError(f"--decode {options['payload']} needs --schema")


def _decoder(options: dict[str, Any]) -> Callable[[DataFrame], DataFrame] | None:
    """What adds decoded columns. It needs the session, because Spark itself reads some schemas."""
    from millrace.pipeline.lake.decoding import make_decoder

    if options["payload"] is None:
        return None
    return make_decoder(options["payload"], options["schema"], options["message"])


def _write(rows: DataFrame, options: dict[str, Any]) -> None:
    from millrace.pipeline.lake.location import root_url

    place = root_url(options["output"])
    mode = "overwrite" if options["overwrite"] else "errorifexists"
    log_line(f"writing to {place} ...")
    rows.write.format(options["form"]).mode(mode).save(place)
    log_line(f"{place} is written")
