"""`millrace group`: list, describe and delete groups of all kinds, and move or delete their offsets."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import fail_with, log_line, print_json, print_table

if TYPE_CHECKING:
    from millrace.cli.group.offsets import PlannedOffset
    from millrace.cli.group.state import GroupState, MemberState

METRICS_URL_OPTION: Final = click.option(
    "--metrics-url",
    envvar="MILLRACE_METRICS_URL",
    show_envvar=True,
    metavar="URL",
    help="The broker's HTTP port, for lag in seconds and the members' health [asked from the broker]. Its "
    "token is taken from MILLRACE_METRICS_TOKEN, the authority of its certificate from MILLRACE_METRICS_CA.",
)


@click.group(help="List, describe, reset and delete consumer and share groups.", no_args_is_help=True)
def group() -> None:
    pass


COMMAND: Final = group


@group.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only this state. Repeatable.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(("classic", "consumer", "share", "streams"), case_sensitive=False),
    help="Only this type. Repeatable.",
)
@json_option
@broker_options
def list_groups(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """List groups of all kinds."""
    from millrace.cli import clients
    from millrace.cli.group import other_kinds
    from millrace.cli.group import state as group_state

    broker = BrokerAddress(**address)
    wanted_states = {group_state.state_named(name) for name in states}
    found = group_state.list_groups(clients.admin_client(broker), broker) + other_kinds.list_others(broker)
    rows = [
        each
        for each in sorted(found, key=lambda each: each.group)
        if (not wanted_states or each.state in wanted_states) and (not types or each.type in types)
    ]
    if as_json:
        for each in rows:
            print_json({"group": each.group, "state": each.state, "type": each.type})
    else:
        print_table(("GROUP", "STATE", "TYPE"), [(each.group, each.state, each.type) for each in rows])


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@METRICS_URL_OPTION
@json_option
@broker_options
def describe(names: tuple[str, ...], metrics_url: str | None, as_json: bool, **address: Any) -> None:
    """Show state, members, committed offsets and lag of groups."""
    from millrace.cli import clients
    from millrace.cli.group import health as group_health
    from millrace.cli.group import state as group_state

    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)
    for position, name in enumerate(dict.fromkeys(names)):
        state = group_state.describe_group(admin, broker, name)
        url = metrics_url or group_health.discovered_url(admin, broker, state)
        state = group_health.with_health(state, url)
        if as_json:
            print_json(group_state.as_document(state))
        else:
            if position:
                click.echo()
            _print_group(state, now_ms=int(time.time() * 1000))


@group.command("reset-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Whose offsets to move, such as orders or orders:0,2-4. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="All partitions that the group has offsets for.")
@click.option("--to-earliest", is_flag=True, help="To the first message that is still there.")
@click.option("--to-latest", is_flag=True, help="Behind the last message.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or the end where there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="N messages on, or back if N is negative.")
@click.option("--to-datetime", metavar="TIME", help="To the first message at or after an ISO time.")
@click.option("--by-duration", metavar="AGO", help="To the first message of the last 1h30m, or PT1H30M.")
@click.option("--share", is_flag=True, help="Make a share group, if there is no group of this name.")
@click.option("--execute", is_flag=True, help="Do it. Without this the plan is only shown.")
@json_option
@broker_options
def reset_offsets(
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    share: bool,
    execute: bool,
    as_json: bool,
    bootstrap: str,
    command_config: Any,
    timeout_s: float,
    **targets: Any,
) -> None:
    """Move the offsets of a group that has no members: those it has committed, or where a share group begins.
    Shows the plan unless --execute is given."""
    from millrace.cli import clients
    from millrace.cli.group import offsets as group_offsets
    from millrace.cli.group import state as group_state

    target = group_offsets.target_of(targets, now_ms=int(time.time() * 1000))
    if bool(topics) == all_topics:
        raise click.UsageError("say which offsets: either --topic (repeatable) or --all-topics")
    broker = BrokerAddress(bootstrap=bootstrap, command_config=command_config, timeout_s=timeout_s)
    admin = clients.admin_client(broker)
    # We ask this first, because librdkafka 2.16 crashes if it asks for a group's offsets while the broker
    # still creates the topic of offsets; this question waits for that topic.
    users = group_state.users_of(admin, broker, name)
    active, is_share = users.members, users.is_share or (share and not users.members)
    partitions = group_offsets.partitions_in_scope(admin, broker, name, topics, is_share=is_share)
    present = group_offsets.present_offsets(admin, broker, name, is_share=is_share)
    plan = group_offsets.plan(admin, broker, present, partitions, target)
    if execute:
        if active:
            raise click.ClickException(_refusal(name, active, "reset"))
        group_offsets.execute(admin, broker, name, plan, is_share=is_share)
    _print_plan(name, plan, as_json=as_json, is_done=execute)
    if not execute:
        if active:
            log_line(_refusal(name, active, "reset"))
        log_line("nothing was changed; --execute does it")


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. (Without a terminal, nobody is asked.)")
@click.option("--if-exists", is_flag=True, help="A group that is not there is no error.")
@broker_options
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, **address: Any) -> None:
    """Delete groups that have no members, with all their offsets."""
    from confluent_kafka import KafkaError

    from millrace.cli import clients
    from millrace.cli.deletion import delete_each
    from millrace.cli.group import state as group_state

    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)

    def explain(name: str, error: clients.RequestFailed) -> str:
        if clients.error_code(error) == KafkaError.NON_EMPTY_GROUP:
            return _refusal(name, group_state.users_of(admin, broker, name).members, "deleted")
        return str(error)

    delete_each(
        names,
        lambda wanted: admin.delete_consumer_groups(wanted, request_timeout=broker.timeout_s),
        broker,
        contents="offsets",
        must_ask=not yes,
        ignored_code=KafkaError.GROUP_ID_NOT_FOUND if if_exists else None,
        explain=explain,
    )


@group.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Whose offsets to delete, such as orders or orders:0,2-4. Repeatable.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. (Without a terminal, nobody is asked.)")
@broker_options
def delete_offsets(name: str, topics: tuple[str, ...], yes: bool, **address: Any) -> None:
    """Delete committed offsets of topics that the group does not read at the moment. A share group forgets
    whole topics, and may have no members."""
    from millrace.cli import clients
    from millrace.cli.group import offset_deletion
    from millrace.cli.group import offsets as group_offsets
    from millrace.cli.group import state as group_state

    broker = BrokerAddress(**address)
    admin = clients.admin_client(broker)
    if group_state.users_of(admin, broker, name).is_share:
        _delete_share_offsets(broker, name, topics, must_ask=not yes)
        return
    partitions = group_offsets.partitions_in_scope(admin, broker, name, topics)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {len(partitions)} offsets of {name}?", abort=True, err=True)
    outcome = offset_deletion.delete_offsets(broker, name, partitions)
    failures = []
    for (topic, number), error in outcome.items():
        if error is None:
            click.echo(f"deleted the offset of {topic}:{number}")
        else:
            failures.append(f"{topic}:{number}: {error}")
    fail_with(failures)


def _delete_share_offsets(broker: BrokerAddress, name: str, topics: Iterable[str], *, must_ask: bool) -> None:
    from millrace.cli.group import share_groups

    some = [word for word in topics if ":" in word]
    if some:
        raise click.UsageError(f"{name} is a share group, which forgets whole topics only, not {some[0]}")
    wanted = list(dict.fromkeys(topics))
    if must_ask and sys.stdin.isatty():
        click.confirm(f"Delete the offsets of {len(wanted)} topics of {name}?", abort=True, err=True)
    failures = []
    for topic, error in share_groups.delete_offsets(broker, name, wanted).items():
        if error is None:
            click.echo(f"deleted the offsets of {topic}")
        else:
            failures.append(f"{topic}: {error}")
    fail_with(failures)


def _refusal(name: str, members: int, done: str) -> str:
    verb = "is 1 member" if members == 1 else f"are {members} members"
    return (
        f"group {name} cannot be {done} while it is in use: there {verb}. "
        "Stop its consumers first; a member that has crashed leaves after its session time-out"
    )


def _print_plan(name: str, plan: Iterable[PlannedOffset], *, as_json: bool, is_done: bool) -> None:
    rows = list(plan)
    if as_json:
        for each in rows:
            print_json(
                {
                    "group": name,
                    "topic": each.topic,
                    "partition": each.partition,
                    "old_offset": each.old,
                    "new_offset": each.new,
                    "note": each.note,
                    "executed": is_done,
                }
            )
        return
    numbers = ("PARTITION", "OLD", "NEW", "CHANGE")
    print_table(
        ("TOPIC", "PARTITION", "OLD", "NEW", "CHANGE", "NOTE"),
        [
            (
                each.topic,
                each.partition,
                "-" if each.old is None else each.old,
                each.new,
                "-" if each.old is None else f"{each.new - each.old:+d}",
                each.note,
            )
            for each in rows
        ],
        right=numbers,
    )


def _print_group(state: GroupState, *, now_ms: int) -> None:
    click.echo(f"Group:        {state.group}")
    click.echo(f"State:        {state.state}")
    click.echo(f"Type:         {state.type}")
    click.echo(f"Assignor:     {state.assignor or '-'}")
    click.echo(f"Coordinator:  {state.coordinator}")
    total = sum(each.lag for each in state.partitions if each.lag is not None)
    oldest = max((each.lag_ms for each in state.partitions if each.lag_ms is not None), default=None)
    click.echo(f"Lag:          {total} messages{'' if oldest is None else f', {_seconds(oldest)} s'}")
    click.echo()
    if state.partitions:
        _print_partitions(state)
    else:
        click.echo("no offsets and no partitions")
    click.echo()
    if state.members:
        _print_members(state.members, now_ms)
    else:
        click.echo("no members")


def _print_partitions(state: GroupState) -> None:
    owners: dict[tuple[str, int], list[str]] = {}
    for member in state.members:
        for partition in member.partitions:
            owners.setdefault(partition, []).append(member.client)
    rows = []
    for each in state.partitions:
        sharing = owners.get((each.topic, each.partition), ["-"])
        rows.append(
            (
                each.topic,
                each.partition,
                "-" if each.committed is None else each.committed,
                "-" if each.end is None else each.end,
                "-" if each.lag is None else each.lag,
                "" if each.lag_ms is None else _seconds(each.lag_ms),
                sharing[0] if len(sharing) == 1 else f"{len(sharing)} members",
            )
        )
    # A share group has committed nothing: its members are done with all before the start.
    offset = "START" if state.type == "share" else "COMMITTED"
    numbers = ("PARTITION", offset, "END", "LAG", "LAG (S)")
    print_table(("TOPIC", *numbers, "OWNER"), rows, right=numbers)


def _print_members(members: Iterable[MemberState], now_ms: int) -> None:
    ages = ("HEARTBEAT", "FETCH", "COMMIT")
    rows = [
        (
            member.member,
            member.client,
            member.host,
            member.instance or "-",
            len(member.partitions),
            *(_ago(at, now_ms) for at in (member.heartbeat_ms, member.fetch_ms, member.commit_ms)),
        )
        for member in members
    ]
    print_table(
        ("MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS", *ages), rows, right=("PARTITIONS", *ages)
    )


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.1f}"


def _ago(at_ms: int | None, now_ms: int) -> str:
    """How long ago something happened; blank where nobody knows."""
    return "" if at_ms is None else f"{max(0, now_ms - at_ms) / 1000:.1f} s ago"
