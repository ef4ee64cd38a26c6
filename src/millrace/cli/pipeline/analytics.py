"""`millrace pipeline analytics`: measure topics into a Delta table, and draw a report as HTML or PNG."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table, progress
from millrace.cli.pipeline.client_properties import client_properties
from millrace.cli.pipeline.spark_options import spark_options, spark_settings

if TYPE_CHECKING:
    from millrace.client.broker_client import BrokerClient
    from millrace.pipeline.analytics.measurement import Measurement
    from millrace.pipeline.analytics.summary import TopicSummary

REPORT_SUFFIXES: Final = (".html", ".png")


@click.command("analytics")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--into",
    "table",
    default="millrace-analytics",
    show_default=True,
    metavar="PATH",
    help="Delta table that keeps the figures: a folder or a URL. A later run goes on where the last ended.",
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a report; .html or .png. Repeatable.",
)
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="Lag of these groups only. Repeatable."
)
@click.option(
    "--watch", "watch_for", metavar="TIME", help="Look at the lag again and again for this long: 10m."
)
@click.option("--every", default="1s", show_default=True, metavar="TIME", help="Time from look to look.")
@click.option(
    "--latency-header",
    metavar="NAME",
    help="Header with the time a message was sent; latency is the record's timestamp less that.",
)
@click.option("--from", "from_text", metavar="TIME", help="Begin here, not where the last run ended: -1h.")
@click.option("--to", "to_text", metavar="TIME", help="End here.")
@click.option("--bucket", metavar="TIME", help="Length of the time steps [about a hundred in all].")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Keys to keep.")
@spark_options
@json_option
@broker_options
def analytics(topics: tuple[str, ...], **options: Any) -> None:
    """Measure topics: rates, sizes, end-to-end latency, key skew, hot partitions, consumer lag.

    \b
    millrace pipeline analytics orders --report orders.html --report orders.png
    millrace pipeline analytics orders --group billing --watch 10m --report lag.html
    """
    from millrace.pipeline.analytics.run import AnalyticsOptions, measure_topics
    from millrace.pipeline.spark.session import make_session, require_spark

    names = tuple(dict.fromkeys(topics))
    run_ms = time.time_ns() // 1_000_000
    settings = _settings(names, options, run_ms, AnalyticsOptions)
    every_s = _duration_s(options["every"], "--every")
    watch_s = _duration_s(options["watch_for"], "--watch") if options["watch_for"] else 0.0
    for report in options["reports"]:
        if report.suffix.lower() not in REPORT_SUFFIXES:
            raise click.BadParameter(f"{report}: a report is .html or .png", param_hint="'--report'")
    require_spark()
    with _client(options) as client:
        _require_topics(client, names)
        lag = _watched(partial(_client, options), client, run_ms, names, options["groups"], watch_s, every_s)
        log_line("starting Spark")
        spark = make_session(
            app_name=f"analytics of {', '.join(names)}",
            master=options["master"],
            config=spark_settings(options),
            locations=[settings.table],
        )
        try:
            from millrace.pipeline import register

            register(spark)
            log_line(f"measuring {', '.join(names)}")
            ranges, summaries = measure_topics(spark, client, settings, run_ms=run_ms, lag=lag)
        finally:
            spark.stop()
    log_line(f"read {sum(each.messages for each in ranges):,} messages; figures are in {settings.table}")
    _write_reports(summaries, options["reports"], run_ms, settings)
    _print(summaries, as_json=options["as_json"])


COMMANDS: Final = {"analytics": analytics}


def _settings(names: tuple[str, ...], options: dict[str, Any], now_ms: int, build: Any) -> Any:
    bucket = options["bucket"]
    return build(
        topics=names,
        table=_table_path(options["table"]),
        source_options={
            "bootstrap.servers": options["bootstrap"],
            **client_properties(options["command_config"]),
        },
        from_ms=_moment_ms(options["from_text"], "--from", now_ms),
        to_ms=_moment_ms(options["to_text"], "--to", now_ms),
        bucket_ms=int(_duration_s(bucket, "--bucket") * 1000) if bucket else None,
        latency_header=options["latency_header"],
        top_keys=options["top"],
    )


def _table_path(text: str) -> str:
    from millrace.pipeline.lake.location import root_url

    return root_url(text)


def _client(options: dict[str, Any]) -> BrokerClient:
    from millrace.client.broker_client import BrokerClient
    from millrace.client.security import read_security

    return BrokerClient(
        options["bootstrap"],
        client_id="millrace-analytics",
        security=read_security(client_properties(options["command_config"])),
        timeout_ms=int(options["timeout_s"] * 1000),
    )


def _require_topics(client: BrokerClient, names: tuple[str, ...]) -> None:
    """Check the names before Spark starts: a typing error should not cost ten seconds."""
    missing = [name for name in names if name not in client.metadata(names)]
    if missing:
        raise click.ClickException(f"there is no topic {', '.join(missing)} at this broker")


def _watched(
    connect: Callable[[], BrokerClient],
    client: BrokerClient,
    run_ms: int,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    watch_s: float,
    every_s: float,
) -> list[Measurement]:
    from millrace.pipeline.analytics import lag
    from millrace.pipeline.analytics.arrivals import ArrivalWatch

    def look() -> list[Measurement]:
        return lag.sample(client, run_ms, names, groups or lag.list_groups(client))

    found: list[Measurement] = []
    looks = int(watch_s / every_s) + 1
    arrivals = ArrivalWatch(connect, list(names) if watch_s else [])
    try:
        with arrivals, progress("watching", total=looks) as bar:
            for sample in lag.watch(look, duration_s=watch_s, every_s=every_s):
                found += sample
                bar.advance(1, note=f"{sum(each.value for each in sample):,.0f} behind")
    except KeyboardInterrupt:
        # A user who has seen enough still wants the report.
        log_line("watching ended early")
    return found + arrivals.measurements(run_ms)


def _write_reports(
    summaries: list[TopicSummary], reports: tuple[Path, ...], run_ms: int, settings: Any
) -> None:
    from millrace.pipeline.analytics import page, plots

    broker = settings.source_options["bootstrap.servers"]
    for report in reports:
        report.parent.mkdir(parents=True, exist_ok=True)
        if report.suffix.lower() == ".html":
            report.write_text(
                page.render(summaries, made_ms=run_ms, source=f"broker {broker}"), encoding="utf-8"
            )
        else:
            plots.write_png(summaries, report, f"Topics at {broker}")
        log_line(f"wrote {report}")


def _print(summaries: list[TopicSummary], *, as_json: bool) -> None:
    from millrace.pipeline.analytics.page import figures_of

    for summary in summaries:
        if as_json:
            print_json(
                {
                    "topic": summary.topic,
                    "messages": summary.messages,
                    "bytes": summary.bytes,
                    "messages_per_s": summary.messages_per_s,
                    "peak_per_s": summary.peak_per_s,
                    "size_p50": None if summary.sizes is None else summary.sizes.p50,
                    "size_p99": None if summary.sizes is None else summary.sizes.p99,
                    "latency_p50_ms": None if summary.latencies is None else summary.latencies.p50,
                    "latency_p99_ms": None if summary.latencies is None else summary.latencies.p99,
                    "arrival_p50_ms": None if summary.arrivals is None else summary.arrivals.p50,
                    "arrival_p99_ms": None if summary.arrivals is None else summary.arrivals.p99,
                    "distinct_keys": summary.distinct_keys,
                    "skew": summary.skew,
                    "hot_partitions": [each.partition for each in summary.hot_partitions],
                    "top_keys": [[each.key, each.messages] for each in summary.keys],
                    "lag": {group: series[-1][1] for group, series in summary.lag.items()},
                }
            )
            continue
        click.echo(f"{summary.topic}:")
        print_table(("FIGURE", "VALUE"), figures_of(summary), right=("VALUE",))


def _duration_s(text: str, option: str) -> float:
    from millrace.core.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from error
    if seconds <= 0:
        raise click.BadParameter(f"{text!r} is no time at all", param_hint=f"'{option}'")
    return seconds


def _moment_ms(text: str | None, option: str, now_ms: int) -> int | None:
    from millrace.cli.moments import AtBeginning, AtTime, parse_moment

    if text is None:
        return None
    try:
        moment = parse_moment(text, now_ms=now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from error
    match moment:
        case AtTime(timestamp_ms):
            return timestamp_ms
        case AtBeginning():
            return 0
        case _:
            raise click.BadParameter(
                f"{text!r}: name a time (2026-01-31T08:00) or a time ago (-1h)", param_hint=f"'{option}'"
            )
