"""`millrace produce`: send lines, JSON lines or whole files as messages."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, Final

import click

from millrace.cli.messages.records import (
    BadLine,
    Headers,
    Message,
    from_json,
    from_line,
    parse_header,
    unescape,
)
from millrace.cli.options import BrokerAddress, broker_options
from millrace.cli.output import Progress, log_line, progress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Delivered

ERRORS_SHOWN_MAX: Final = 5
PROGRESS_EVERY: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How input becomes messages."""

    parse: Callable[[bytes], Message]
    whole_files: bool
    partition: int | None
    repartition: bool


@dataclass(slots=True)
class Deliveries:
    """Counts what the broker has confirmed, and keeps the first failures."""

    sent: int = 0
    delivered: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def on_delivery(self, error: KafkaError | None, message: Delivered) -> None:
        if error is None:
            self.delivered += 1
            return
        self.failed += 1
        if len(self.errors) < ERRORS_SHOWN_MAX:
            self.errors.append(f"{message.topic()}: {error.str()} ({error.name()})")


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Each line is a JSON object, as `consume --json` prints it."
)
@click.option("-K", "--key-separator", metavar="TEXT", help="The key stands in front of this in each line.")
@click.option("-k", "--key", "fixed_key", metavar="TEXT", help="The key of every message.")
@click.option(
    "-H",
    "--header",
    "header_words",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header for every message. Repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Send to this partition [chosen by the key].",
)
@click.option("--repartition", is_flag=True, help="Choose partitions by key, whatever the JSON lines say.")
@click.option("--base64", "is_base64", is_flag=True, help="Keys and values in the lines are base64.")
@click.option("--whole-files", is_flag=True, help="Each file is one message.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    show_default=True,
)
@click.option(
    "-a",
    "--acks",
    type=click.Choice(("all", "1", "0")),
    default="all",
    show_default=True,
    help="Who must have a message before it counts as sent.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@broker_options
def produce(
    topic: str,
    files: tuple[IO[bytes], ...],
    as_json: bool,
    key_separator: str | None,
    fixed_key: str | None,
    header_words: tuple[str, ...],
    partition: int | None,
    repartition: bool,
    is_base64: bool,
    whole_files: bool,
    compression: str,
    acks: str,
    quiet: bool,
    **address: Any,
) -> None:
    """Send each line of standard input (or of the FILEs) to TOPIC as a message."""
    if as_json and (key_separator is not None or is_base64 or whole_files):
        raise click.UsageError(
            "--json says all about a message: no --key-separator, --base64 or --whole-files"
        )
    if key_separator is not None and (fixed_key is not None or whole_files):
        raise click.UsageError("--key-separator goes neither with --key nor with --whole-files")
    if whole_files and not files:
        raise click.UsageError("--whole-files needs files")

    from millrace.cli import clients

    headers = [parse_header(word) for word in header_words]
    separator = None if key_separator is None else unescape(key_separator).encode()
    reading = Reading(
        parse=_parser(as_json, separator, is_base64, headers, fixed_key),
        whole_files=whole_files,
        partition=partition,
        repartition=repartition,
    )
    producer = clients.producer(
        BrokerAddress(**address),
        {
            "acks": acks,
            "enable.idempotence": acks == "all",
            "compression.type": compression,
            "linger.ms": 5,
            "message.timeout.ms": int(address["timeout_s"] * 1000),
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 262_144,
        },
    )
    deliveries = Deliveries()
    started_at = time.monotonic()
    inputs = files or (sys.stdin.buffer,)
    with _progress(inputs, quiet=quiet) as bar:
        try:
            _send_all(producer, topic, inputs, reading, deliveries, bar)
        finally:
            # What was read before a bad line or Ctrl-C is sent all the same.
            _flush(producer, deliveries)
    _report(topic, deliveries, time.monotonic() - started_at, quiet=quiet)


COMMAND: Final = produce


def _parser(
    as_json: bool, separator: bytes | None, is_base64: bool, headers: Headers, fixed_key: str | None
) -> Callable[[bytes], Message]:
    def parse(line: bytes) -> Message:
        if as_json:
            message = from_json(line, headers=headers)
        else:
            message = from_line(line, key_separator=separator, is_base64=is_base64, headers=headers)
        return (
            message if fixed_key is None else replace(message, key=fixed_key.encode(errors="surrogateescape"))
        )

    return parse


def _send_all(
    producer: Producer,
    topic: str,
    inputs: tuple[IO[bytes], ...],
    reading: Reading,
    deliveries: Deliveries,
    bar: Progress | None,
) -> None:
    bytes_read = 0
    for stream in inputs:
        for number, line in enumerate(_pieces(stream, whole=reading.whole_files), start=1):
            bytes_read += len(line) + 1
            try:
                message = reading.parse(line)
            except BadLine as error:
                raise BadLine(f"{_name_of(stream)}, line {number}: {error}") from error
            _send(producer, topic, message, reading, deliveries)
            if bar is not None and deliveries.sent % PROGRESS_EVERY == 0:
                bar.advance(bytes_read, note=f"{deliveries.sent:,} messages")
                bytes_read = 0


def _pieces(stream: IO[bytes], *, whole: bool) -> Iterator[bytes]:
    if whole:
        yield stream.read()
        return
    for line in stream:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _send(producer: Producer, topic: str, message: Message, reading: Reading, deliveries: Deliveries) -> None:
    options: dict[str, Any] = {}
    partition = reading.partition
    if partition is None and not reading.repartition:
        partition = message.partition
    if partition is not None:
        options["partition"] = partition
    if message.timestamp_ms is not None:
        options["timestamp"] = message.timestamp_ms
    while True:
        try:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers) or None,
                on_delivery=deliveries.on_delivery,
                **options,
            )
        except BufferError:
            # The queue is full: the broker sets the pace.
            producer.poll(0.1)
        else:
            break
    deliveries.sent += 1
    producer.poll(0)


def _flush(producer: Producer, deliveries: Deliveries) -> None:
    """Wait until the fate of every message is known; message.timeout.ms bounds the wait."""
    while deliveries.delivered + deliveries.failed < deliveries.sent:
        producer.flush(1.0)


def _report(topic: str, deliveries: Deliveries, seconds: float, *, quiet: bool) -> None:
    for error in deliveries.errors:
        click.echo(f"Error: {error}", err=True)
    if deliveries.failed:
        raise click.ClickException(f"{deliveries.failed:,} of {deliveries.sent:,} messages were not sent")
    if not quiet:
        rate = f" ({deliveries.sent / seconds:,.0f} a second)" if deliveries.sent >= PROGRESS_EVERY else ""
        noun = "message" if deliveries.sent == 1 else "messages"
        log_line(f"sent {deliveries.sent:,} {noun} to {topic}{rate}")


def _progress(inputs: tuple[IO[bytes], ...], *, quiet: bool) -> AbstractContextManager[Progress | None]:
    """Progress is known only where all input is of known size."""
    sizes = [_size_of(stream) for stream in inputs]
    if quiet or any(size is None for size in sizes):
        return nullcontext(None)
    return progress("sending", total=sum(size or 0 for size in sizes))


def _size_of(stream: IO[bytes]) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, AttributeError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _name_of(stream: IO[bytes]) -> str:
    if stream is sys.stdin.buffer:
        return "standard input"
    return str(getattr(stream, "name", "standard input"))
