"""`millrace delayed`: see which messages wait for their time, cancel them, or put others in their place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.group.commands import METRICS_URL_OPTION
from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import fail_with, print_json, print_table

if TYPE_CHECKING:
    from millrace.cli.delayed.writing import DelayedId, Replacement

LISTED_MAX: Final = 100_000


@click.group(help="List, cancel and replace delayed messages.", no_args_is_help=True)
def delayed() -> None:
    pass


COMMAND: Final = delayed


@delayed.command("list")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option("--due-after", metavar="TIME", help="Only what is due at or after an ISO time.")
@click.option("--due-before", metavar="TIME", help="Only what is due before an ISO time.")
@click.option(
    "--limit",
    type=click.IntRange(1, LISTED_MAX),
    default=1000,
    show_default=True,
    help="So many at most: those that are due first.",
)
@json_option
@broker_options
def list_delayed(
    topics: tuple[str, ...],
    due_after: str | None,
    due_before: str | None,
    limit: int,
    as_json: bool,
    **address: Any,
) -> None:
    """List messages that wait, by the time at which they are due. Reads the whole store."""
    from millrace.cli.delayed import reading
    from millrace.cli.messages.records import format_time, show_bytes
    from millrace.queues.delayed.codec import StoredMessage, message_parts

    broker = BrokerAddress(**address)
    from_ms = _time_ms(due_after, "--due-after")
    end_ms = _time_ms(due_before, "--due-before")
    names = reading.topic_names(broker)

    def is_wanted(stored: StoredMessage) -> bool:
        return (
            (not topics or names.get(stored.id.topic_id) in topics)
            and (from_ms is None or stored.due_ms >= from_ms)
            and (end_ms is None or stored.due_ms < end_ms)
        )

    found = reading.read_first(broker, is_wanted, limit)
    rows = []
    for stored in found.messages[:limit]:
        # A topic that was deleted has no name; what waits for it will be dropped.
        topic = names.get(stored.id.topic_id, "")
        name = f"{topic}:{stored.id.partition}:{stored.id.offset}"
        key, value, _ = message_parts(stored.message)
        if as_json:
            print_json(
                {
                    "id": name,
                    "topic": topic,
                    "partition": stored.id.partition,
                    "offset": stored.id.offset,
                    "due_ms": stored.due_ms,
                    "produced_ms": stored.produced_ms,
                    "key": None if key is None else show_bytes(key, is_base64=False),
                    "value_bytes": None if value is None else len(value),
                }
            )
        else:
            shown_key = "" if key is None else show_bytes(key, is_base64=False)
            size = "" if value is None else len(value)
            rows.append((name, format_time(stored.due_ms), format_time(stored.produced_ms), shown_key, size))
    if not as_json:
        print_table(("ID", "DUE", "PRODUCED", "KEY", "VALUE BYTES"), rows, right=("VALUE BYTES",))
    if len(found.messages) > limit or found.complete_before_ms is not None:
        click.echo(f"there are more than these {min(limit, len(found.messages))}", err=True)


@delayed.command()
@click.argument("ids", nargs=-1, required=True, metavar="TOPIC:PARTITION:OFFSET...")
@broker_options
def cancel(ids: tuple[str, ...], **address: Any) -> None:
    """Cancel messages that wait. One that is being delivered at this moment may still come."""
    from millrace.cli.delayed import writing

    broker = BrokerAddress(**address)
    wanted = [writing.parse_id(word) for word in dict.fromkeys(ids)]
    writing.require_delayed(broker, list(dict.fromkeys(each.topic for each in wanted)))
    failures = writing.cancel(broker, wanted)
    click.echo(f"cancelled {len(wanted) - len(failures)} of {len(wanted)}")
    fail_with(failures)


@delayed.command()
@click.argument("old", metavar="TOPIC:PARTITION:OFFSET")
@click.option("--at", "at", metavar="TIME", help="When the new one is due: an ISO time.")
@click.option("--in", "after", metavar="DURATION", help="The same from now on, such as 1h30m.")
@click.option("--value", metavar="TEXT", help="What it says [key, value and headers of the old one].")
@click.option("--key", metavar="TEXT", help="Its key, with --value.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="With --value.")
@json_option
@broker_options
def replace(
    old: str,
    at: str | None,
    after: str | None,
    value: str | None,
    key: str | None,
    headers: tuple[str, ...],
    as_json: bool,
    **address: Any,
) -> None:
    """Put another message in the place of one that waits, or the same one at another time."""
    from millrace.cli.delayed import writing
    from millrace.cli.messages.records import parse_header

    broker = BrokerAddress(**address)
    place = writing.parse_id(old)
    due_ms = _due_ms(at, after)
    if value is None and (key is not None or headers):
        raise click.UsageError("--key and --header need --value")
    writing.require_delayed(broker, [place.topic])
    if value is None:
        by = _same_message(broker, place, due_ms)
    else:
        by = writing.Replacement(
            due_ms,
            None if key is None else key.encode(),
            value.encode(),
            [parse_header(word) for word in headers],
        )
    new = writing.replace(broker, place, by)
    if as_json:
        print_json({"id": str(new), "replaces": str(place), "due_ms": due_ms})
    else:
        click.echo(f"{new} takes the place of {place}")


@delayed.command()
@METRICS_URL_OPTION
@json_option
@broker_options
def status(metrics_url: str | None, as_json: bool, **address: Any) -> None:
    """Show how many wait, when the next is due, and how late messages were delivered. Asks the HTTP ports of
    all brokers; where one has none, the store is read."""
    from millrace.cli.delayed import figures, reading
    from millrace.cli.messages.records import format_time

    broker = BrokerAddress(**address)
    urls = [metrics_url] if metrics_url else figures.urls_of(broker)
    told = figures.status_at(urls) if urls else None
    document: dict[str, Any]
    if told is None:
        found = reading.read_first(broker, lambda _: True, 1)
        due_ms = found.messages[0].due_ms if found.messages else None
        document = {"pending": found.pending_count, "next_due_ms": due_ms}
    else:
        document = {
            "pending": told.pending,
            "next_due_ms": told.next_due_ms,
            "delivered": told.delivered,
            "cancelled": told.cancelled,
            "dropped": told.dropped,
        }
        for percent, bound_s in zip(figures.QUANTILES, told.late_at_most_s, strict=True):
            document[f"late_p{percent}_at_most_s"] = bound_s
    if as_json:
        print_json(document)
        return
    due = document["next_due_ms"]
    rows = [(name.replace("_", " "), number) for name, number in document.items() if name != "next_due_ms"]
    print_table(("FIGURE", "VALUE"), [*rows, ("next due", "" if due is None else format_time(due))])


def _same_message(broker: BrokerAddress, place: DelayedId, due_ms: int) -> Replacement:
    """The message that waits, for another time."""
    from millrace.cli.clients import RequestFailed
    from millrace.cli.delayed import reading, writing
    from millrace.queues.delayed.codec import message_parts
    from millrace.queues.delayed.model import SCHEDULED_AT

    ids = [topic_id for topic_id, name in reading.topic_names(broker).items() if name == place.topic]
    wanted = (place.partition, place.offset)
    found = reading.read_store(
        broker, lambda stored: stored.id.topic_id in ids and tuple(stored.id[1:]) == wanted
    )
    if not found.messages:
        raise RequestFailed(f"{place} does not wait: it was delivered or cancelled, or never was")
    key, value, headers = message_parts(found.messages[0].message)
    kept = [header for header in headers if header[0] != SCHEDULED_AT]
    return writing.Replacement(due_ms, key, value, kept)


def _due_ms(at: str | None, after: str | None) -> int:
    if (at is None) == (after is None):
        raise click.UsageError("say when: either --at or --in")
    if after is None:
        due_ms = _time_ms(at, "--at")
        assert due_ms is not None, at
        return due_ms
    from millrace.cli.group.offsets import parse_any_duration_ms

    try:
        return round(time.time() * 1000) + parse_any_duration_ms(after)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--in'") from None


def _time_ms(text: str | None, option: str) -> int | None:
    from millrace.cli.moments import parse_timestamp_ms

    if text is None:
        return None
    try:
        return parse_timestamp_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None
