"""`millrace queue`: how share groups are doing, what waits in them, and what became of their dead letters."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table, progress

if TYPE_CHECKING:
    from millrace.cli.queue.overview import Queue

CAUSES: Final = ("rejected", "delivery-limit", "expired", "other")
METRICS_URL_OPTION: Final = click.option(
    "--metrics-url",
    "metrics_urls",
    multiple=True,
    envvar="MILLRACE_METRICS_URL",
    show_envvar=True,
    metavar="URL",
    help="A broker's HTTP port, for what is in flight and what was counted [asked from the brokers].",
)
CAUSE_OPTION: Final = click.option(
    "--cause", "causes", multiple=True, type=click.Choice(CAUSES), help="Only this cause. Repeatable."
)
LETTERS_OPTION: Final = click.option(
    "--topic", metavar="TOPIC", help="Where the dead letters are [what the group's settings say]."
)


@click.group(
    help="Look at queues (share groups), empty and pause them, and bring back their dead letters.",
    no_args_is_help=True,
)
def queue() -> None:
    pass


COMMAND: Final = queue


@queue.command("list")
@METRICS_URL_OPTION
@json_option
@broker_options
def list_queues(metrics_urls: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """List queues: how much waits in each, for how long, and how deliveries go."""
    from millrace.cli import clients
    from millrace.cli.queue import overview

    broker = BrokerAddress(**address)
    urls = metrics_urls or overview.urls(clients.admin_client(broker), broker)
    rows = [overview.look(broker, name, urls) for name in overview.names(broker)]
    now_ms = int(time.time() * 1000)
    if as_json:
        for each in rows:
            print_json(_summary(each, now_ms))
        return
    numbers = ("MEMBERS", "DEPTH", "OLDEST (S)", "IN FLIGHT", "REDELIVERED", "DEAD LETTERS")
    print_table(
        ("GROUP", "STATE", *numbers),
        [
            (
                each.group,
                each.stopped or each.state,
                len(each.members),
                each.depth,
                _age_text(each.oldest_ms, now_ms),
                _known(each.in_flight),
                _known(None if each.counts is None else each.counts.get("redelivered", 0)),
                _known(each.dead_letters),
            )
            for each in rows
        ],
        right=numbers,
    )


@queue.command()
@click.argument("name", metavar="GROUP")
@METRICS_URL_OPTION
@json_option
@broker_options
def describe(name: str, metrics_urls: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """Show a queue's partitions, members, settings, and whether it delivers."""
    from millrace.cli import clients
    from millrace.cli.queue import overview

    broker = BrokerAddress(**address)
    urls = metrics_urls or overview.urls(clients.admin_client(broker), broker)
    found = overview.look(broker, name, urls)
    now_ms = int(time.time() * 1000)
    if as_json:
        print_json(_document(found, now_ms))
    else:
        _print_queue(found, now_ms)


@queue.command()
@click.argument("name", metavar="GROUP")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option("-n", "--max-messages", "limit", type=click.IntRange(min=1), default=10, show_default=True)
@json_option
@broker_options
def peek(name: str, topics: tuple[str, ...], limit: int, as_json: bool, **address: Any) -> None:
    """Show the first messages that are not done, without taking them from anybody. Some behind the first may
    be done already, or in a member's hands."""
    from millrace.cli.messages.records import TextColumns, to_json
    from millrace.cli.queue import peeking

    columns = TextColumns(timestamps=True, offsets=True, headers=True, keys=True)
    for message in peeking.first_messages(BrokerAddress(**address), name, topics, limit):
        click.echo(
            to_json(message, is_base64=False) if as_json else f"{message.topic}\t{columns.render(message)}"
        )


@queue.command()
@click.argument("name", metavar="GROUP")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for the group's name.")
@broker_options
def purge(name: str, yes: bool, **address: Any) -> None:
    """Pass over everything that waits: the group goes on with what is produced from now on. The messages stay
    in their topics for others."""
    from millrace.cli.queue import purging

    broker = BrokerAddress(**address)
    plan = purging.plan(broker, name)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("say --yes: nobody is here to confirm it")
        typed = click.prompt(f"{plan.records} messages will not be delivered. Type {name} to go on", err=True)
        if typed != name:
            raise click.Abort
    purging.purge(broker, name, plan.ends)
    click.echo(f"passed over {plan.records} messages of {name}")


@queue.command()
@click.argument("name", metavar="GROUP")
@broker_options
def pause(name: str, **address: Any) -> None:
    """Deliver nothing until `resume`. Members stay, and may acknowledge what they have."""
    _set_pause(BrokerAddress(**address), name, "true")
    click.echo(f"paused {name}")


@queue.command()
@click.argument("name", metavar="GROUP")
@broker_options
def resume(name: str, **address: Any) -> None:
    """Deliver again."""
    _set_pause(BrokerAddress(**address), name, None)
    click.echo(f"resumed {name}")


@queue.command("dead-letters")
@click.argument("name", metavar="GROUP")
@CAUSE_OPTION
@click.option("--source", "sources", multiple=True, metavar="TOPIC", help="Only from this topic. Repeatable.")
@click.option("--all-groups", is_flag=True, help="Also those of other groups in the same dead-letter topic.")
@LETTERS_OPTION
@json_option
@broker_options
def dead_letters(
    name: str,
    causes: tuple[str, ...],
    sources: tuple[str, ...],
    all_groups: bool,
    topic: str | None,
    as_json: bool,
    **address: Any,
) -> None:
    """Count dead letters by cause and by where they come from. Those that were brought back count too: they
    stay until their topic's retention ends."""
    from millrace.cli.group import share_groups
    from millrace.cli.queue import group_settings, letters, reading

    with share_groups.open_client(BrokerAddress(**address)) as client:
        settings = group_settings.settings_of(client, name)
        where = letters.dead_letter_topic(settings, group_settings.DEAD_LETTER_TOPIC, name, topic)
        found = reading.topic_named(client, where)
        every = (
            letter
            for partition, offsets in reading.bounds(client, found).items()
            for letter in letters.read_letters(
                client, found, partition, offsets, group=None if all_groups else name
            )
        )
        counts = letters.count(every, causes, sources)
    if as_json:
        for heap, count in counts.items():
            print_json({**heap._asdict(), **count._asdict(), "dead_letter_topic": where})
        return
    from millrace.cli.messages.records import format_time

    print_table(
        ("GROUP", "SOURCE", "CAUSE", "COUNT", "FIRST", "LAST"),
        [(*heap, count.letters, *map(format_time, count[1:])) for heap, count in counts.items()],
        right=("COUNT",),
    )


@queue.command()
@click.argument("name", metavar="GROUP")
@click.option("--to", "target", metavar="TOPIC", help="Where to [the topic that each came from].")
@CAUSE_OPTION
@click.option("--rate", type=click.FloatRange(min=0.1), metavar="N", help="At most so many each second.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@LETTERS_OPTION
@broker_options
def redrive(
    name: str,
    target: str | None,
    causes: tuple[str, ...],
    rate: float | None,
    dry_run: bool,
    topic: str | None,
    **address: Any,
) -> None:
    """Bring dead letters back, each once: what an earlier redrive of this group has brought back is left
    out, and one that was stopped goes on where it was."""
    from millrace.cli.group import share_groups
    from millrace.cli.queue import group_settings, letters
    from millrace.cli.queue import redrive as driving

    with share_groups.open_client(BrokerAddress(**address)) as client:
        settings = group_settings.settings_of(client, name)
        wanted = driving.Redrive(
            group=name,
            topic=letters.dead_letter_topic(settings, group_settings.DEAD_LETTER_TOPIC, name, topic),
            causes=tuple(dict.fromkeys(causes)) or CAUSES,
            target=target,
            rate=rate,
        )
        driving.require_other_topic(wanted)
        total = sum(
            len(portion.letters)
            for portion in driving.portions(client, wanted, letters_max=driving.BATCH_LETTERS)
        )
        where = target or "where they came from"
        if dry_run:
            click.echo(f"{total} dead letters would go to {where}")
            return
        done = 0
        with progress(f"redrive {name}", total=total) as bar:

            def advance(letters_done: int) -> None:
                nonlocal done
                done += letters_done
                bar.advance(letters_done, note=f"{done} of {total} dead letters")

            count = driving.redrive(client, wanted, advance, sleep=time.sleep)
    log_line(f"{count} dead letters of {name} went to {where}")


def _set_pause(broker: BrokerAddress, name: str, value: str | None) -> None:
    from millrace.cli.clients import RequestFailed
    from millrace.cli.group import share_groups
    from millrace.cli.queue import group_settings

    if share_groups.find(broker, name) is None:
        raise RequestFailed(f"no such share group: {name}")
    with share_groups.open_client(broker) as client:
        group_settings.change(client, name, {group_settings.PAUSE: value})


def _summary(found: Queue, now_ms: int) -> dict[str, Any]:
    return {
        "group": found.group,
        "state": found.state,
        "stopped": found.stopped or None,
        "members": len(found.members),
        "depth": found.depth,
        "oldest_age_ms": None if found.oldest_ms is None else max(0, now_ms - found.oldest_ms),
        "in_flight": found.in_flight,
        "counts": found.counts,
        "dead_letters": found.dead_letters,
    }


def _document(found: Queue, now_ms: int) -> dict[str, Any]:
    return {
        **_summary(found, now_ms),
        "members": [
            {
                "member": each.member_id,
                "client": each.client_id,
                "host": each.client_host.lstrip("/"),
                "topics": sorted(each.subscribed_topic_names),
            }
            for each in found.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "start": each.start,
                "end": each.end,
                "depth": each.depth,
                "oldest_age_ms": None if each.oldest_ms is None else max(0, now_ms - each.oldest_ms),
                "in_flight": each.in_flight,
                "dead_letters_waiting": each.dead_letters_waiting,
            }
            for each in found.partitions
        ],
        "settings": found.settings,
    }


def _print_queue(found: Queue, now_ms: int) -> None:
    click.echo(f"Group:         {found.group}")
    click.echo(f"State:         {found.state}")
    click.echo(f"Delivery:      {found.stopped or 'on'}")
    click.echo(f"Depth:         {found.depth} messages")
    click.echo(f"Dead letters:  {_known(found.dead_letters)}")
    for what, count in (found.counts or {}).items():
        click.echo(f"{what.replace('_', ' ').capitalize() + ':':<15}{count}")
    click.echo()
    numbers = ("PARTITION", "START", "END", "DEPTH", "OLDEST (S)", "IN FLIGHT")
    print_table(
        ("TOPIC", *numbers),
        [
            (
                each.topic,
                each.partition,
                _known(each.start),
                _known(each.end),
                _known(each.depth),
                _age_text(each.oldest_ms, now_ms),
                _known(each.in_flight),
            )
            for each in found.partitions
        ],
        right=numbers,
    )
    click.echo()
    if found.members:
        print_table(
            ("MEMBER", "CLIENT", "HOST", "TOPICS"),
            [
                (
                    each.member_id,
                    each.client_id,
                    each.client_host.lstrip("/"),
                    ",".join(sorted(each.subscribed_topic_names)),
                )
                for each in found.members
            ],
        )
    else:
        click.echo("no members")
    click.echo()
    if found.settings:
        print_table(("SETTING", "VALUE"), list(found.settings.items()))
    else:
        click.echo("all settings are at their defaults")


def _age_text(at_ms: int | None, now_ms: int) -> str:
    return "-" if at_ms is None else f"{max(0, now_ms - at_ms) / 1000:.1f}"


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)
