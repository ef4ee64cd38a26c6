"""`millrace consume`: read messages of a topic between two moments and print them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.messages.records import (
    BadLine,
    Message,
    TextColumns,
    headers_of,
    template_renderer,
    to_json,
    unescape,
)
from millrace.cli.moments import (
    FORMS,
    AtBeginning,
    AtEnd,
    AtOffset,
    AtTime,
    BeforeEnd,
    Moment,
    parse_moment,
    parse_partitions,
)
from millrace.cli.options import BrokerAddress, broker_options
from millrace.cli.output import log_line
from millrace.core.override import override

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import Message as Received

BATCH_MESSAGES: Final = 1000
POLL_S: Final = 0.2
Render = Callable[[Message], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which messages of one partition are wanted: from `start`, before `stop` (None: for ever)."""

    partition: int
    start: int
    stop: int | None


class _MomentType(click.ParamType[Moment]):
    name = "moment"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
        if not isinstance(value, str):
            moment: Moment = value
            return moment
        try:
            return parse_moment(value, now_ms=time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(epilog=f"A moment is: {FORMS}.")
@click.argument("topic")
@click.option("-p", "--partitions", metavar="LIST", help="Only these partitions, such as 0,2,5-7.")
@click.option(
    "--from",
    "start",
    type=_MomentType(),
    metavar="MOMENT",
    help="Where to start [beginning; with --follow: end].",
)
@click.option(
    "--to", "stop", type=_MomentType(), metavar="MOMENT", help="Where to stop; that message is not printed."
)
@click.option("-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages [stop at the present end].")
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "template")), default="text", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json; `produce --json` reads it.")
@click.option("-t", "--template", metavar="TEXT", help="Such as '{partition}:{offset} {time} {key}={value}'.")
@click.option("--keys", is_flag=True, help="Text: print keys.")
@click.option("--headers", is_flag=True, help="Text: print headers.")
@click.option("--timestamps", is_flag=True, help="Text: print times.")
@click.option("--offsets", is_flag=True, help="Text: print partition:offset.")
@click.option(
    "--separator", default="\\t", show_default=True, metavar="TEXT", help="Text: between the columns."
)
@click.option("--base64", "is_base64", is_flag=True, help="Text and JSON: print keys and values as base64.")
@click.option(
    "--isolation",
    type=click.Choice(("read_committed", "read_uncommitted")),
    default="read_committed",
    show_default=True,
    help="Whether to leave out messages of open and aborted transactions.",
)
@click.option("-q", "--quiet", is_flag=True, help="No summary.")
@broker_options
def consume(
    topic: str,
    partitions: str | None,
    start: Moment | None,
    stop: Moment | None,
    max_messages: int | None,
    follow: bool,
    form: str,
    as_json: bool,
    template: str | None,
    keys: bool,
    headers: bool,
    timestamps: bool,
    offsets: bool,
    separator: str,
    is_base64: bool,
    isolation: str,
    quiet: bool,
    **address: Any,
) -> None:
    """Read messages of TOPIC and print one on each line."""
    columns = TextColumns(
        timestamps=timestamps,
        offsets=offsets,
        headers=headers,
        keys=keys,
        separator=unescape(separator),
        is_base64=is_base64,
    )
    render = _renderer("json" if as_json else form, template, columns)
    if follow and stop is not None and not isinstance(stop, AtOffset):
        raise click.UsageError("--follow goes with --to only if that is an offset")
    try:
        numbers = None if partitions is None else parse_partitions(partitions)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--partitions'") from error

    from millrace.cli import clients

    broker = BrokerAddress(**address)
    settings = {
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 65_536,
    }
    consumer = clients.consumer(broker, settings)
    try:
        ranges = _plan(
            consumer, broker, topic, numbers, start or (AtEnd() if follow else AtBeginning()), stop, follow
        )
        count = _print_messages(consumer, topic, ranges, max_messages, render)
    finally:
        consumer.close()
    if not quiet:
        log_line(f"read {count:,} {'message' if count == 1 else 'messages'} from {topic}")


COMMAND: Final = consume


def _renderer(form: str, template: str | None, columns: TextColumns) -> Render:
    if template is not None and form == "text":
        form = "template"
    if form == "template":
        if template is None:
            raise click.UsageError("--format template needs --template")
        try:
            return template_renderer(template)
        except BadLine as error:
            raise click.BadParameter(str(error), param_hint="'--template'") from error
    if form == "json":
        return lambda message: to_json(message, is_base64=columns.is_base64)
    return columns.render


def _plan(
    consumer: Consumer,
    broker: BrokerAddress,
    topic: str,
    numbers: list[int] | None,
    start: Moment,
    stop: Moment | None,
    follow: bool,
) -> list[Range]:
    from millrace.cli import clients

    metadata = clients.cluster_metadata(consumer, broker)
    if topic not in metadata.topics:
        raise click.ClickException(f"no such topic: {topic}")
    existing = sorted(metadata.topics[topic].partitions)
    missing = [number for number in numbers or () if number not in existing]
    if missing:
        raise click.ClickException(f"{topic} has {len(existing)} partitions and no partition {missing[0]}")
    ranges: list[Range] = []
    for number in existing if numbers is None else numbers:
        bounds = _watermarks(consumer, broker, topic, number)
        first = _resolve(consumer, broker, topic, number, start, bounds)
        last: int | None
        if stop is None:
            last = None if follow else bounds[1]
        elif follow and isinstance(stop, AtOffset):
            last = stop.offset
        else:
            last = min(bounds[1], _resolve(consumer, broker, topic, number, stop, bounds))
        ranges.append(Range(partition=number, start=first, stop=last))
    return [each for each in ranges if each.stop is None or each.start < each.stop]


def _watermarks(consumer: Consumer, broker: BrokerAddress, topic: str, number: int) -> tuple[int, int]:
    from confluent_kafka import TopicPartition

    from millrace.cli import clients

    with clients.explained(f"{topic}-{number}"):
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=broker.timeout_s)
    if bounds is None:
        raise click.ClickException(f"{topic}-{number}: no answer within {broker.timeout_s:g} s")
    return bounds


def _resolve(
    consumer: Consumer,
    broker: BrokerAddress,
    topic: str,
    number: int,
    moment: Moment,
    bounds: tuple[int, int],
) -> int:
    """The offset of a moment in one partition."""
    low, high = bounds
    match moment:
        case AtBeginning():
            return low
        case AtEnd():
            return high
        case AtOffset(offset):
            # Below the beginning lies nothing; beyond the end a reader waits or stops.
            return max(low, offset)
        case BeforeEnd(count):
            return max(low, high - count)
        case AtTime(timestamp_ms):
            return _offset_at(consumer, broker, topic, number, timestamp_ms, otherwise=high)


def _offset_at(
    consumer: Consumer, broker: BrokerAddress, topic: str, number: int, timestamp_ms: int, *, otherwise: int
) -> int:
    from confluent_kafka import TopicPartition

    from millrace.cli import clients

    with clients.explained(f"{topic}-{number}"):
        (found,) = consumer.offsets_for_times(
            [TopicPartition(topic, number, timestamp_ms)], timeout=broker.timeout_s
        )
    if found.error is not None:
        raise click.ClickException(f"{topic}-{number}: {clients.describe_error(found.error)}")
    return found.offset if found.offset >= 0 else otherwise


def _print_messages(
    consumer: Consumer, topic: str, ranges: list[Range], max_messages: int | None, render: Render
) -> int:
    from confluent_kafka import TopicPartition

    stops = {each.partition: each.stop for each in ranges}
    if not stops:
        return 0
    consumer.assign([TopicPartition(topic, each.partition, each.start) for each in ranges])
    # Bytes that are no text pass unchanged, as `show_bytes` has decoded them.
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    count = 0
    while stops:
        wanted = BATCH_MESSAGES if max_messages is None else min(BATCH_MESSAGES, max_messages - count)
        for received in _next_batch(consumer, wanted):
            number = received.partition()
            if number not in stops or _is_about_the_group(received):
                continue
            if _is_at_end(received):
                stop = stops[number]
                # Compaction and transaction markers leave offsets without a message: only the end tells.
                if stop is not None and _offset_of(received) >= stop:
                    _finish(consumer, topic, number, stops)
                continue
            offset = _offset_of(received)
            stop = stops[number]
            if stop is None or offset < stop:
                sys.stdout.write(render(_message(received)) + "\n")
                count += 1
            if stop is not None and offset + 1 >= stop:
                _finish(consumer, topic, number, stops)
        sys.stdout.flush()
        if max_messages is not None and count >= max_messages:
            break
    return count


def _next_batch(consumer: Consumer, count_max: int) -> list[Received]:
    """What is there already, or the first message that comes: it does not wait for a full batch."""
    first = consumer.poll(POLL_S)
    if first is None:
        return []
    return [first, *(consumer.consume(count_max - 1, timeout=0) if count_max > 1 else ())]


def _finish(consumer: Consumer, topic: str, number: int, stops: dict[int, int | None]) -> None:
    from confluent_kafka import TopicPartition

    del stops[number]
    if stops:
        consumer.incremental_unassign([TopicPartition(topic, number)])


def _is_about_the_group(received: Received) -> bool:
    """librdkafka looks for the coordinator of the group that it must be told, and which we neither join nor
    commit to: who may read a topic needs no permission for it."""
    from confluent_kafka import KafkaError

    error = received.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _is_at_end(received: Received) -> bool:
    """True for the end of a partition; any other error ends the command."""
    from confluent_kafka import KafkaError, KafkaException

    from millrace.cli import clients

    error = received.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    with clients.explained(f"{received.topic()}-{received.partition()}"):
        raise KafkaException(error)


def _offset_of(received: Received) -> int:
    offset = received.offset()
    assert offset is not None
    return offset


def _message(received: Received) -> Message:
    kind, timestamp_ms = received.timestamp()
    key, value = received.key(), received.value()
    return Message(
        topic=received.topic() or "",
        partition=received.partition(),
        offset=received.offset(),
        timestamp_ms=timestamp_ms if kind else None,
        key=key.encode() if isinstance(key, str) else key,
        value=value.encode() if isinstance(value, str) else value,
        headers=headers_of(received.headers()),
    )
