"""`millrace reassign`: plan moves of replicas, see what they cost, carry them out, follow and cancel them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table, progress

if TYPE_CHECKING:
    from millrace.cli.broker_requests import Connection
    from millrace.cli.reassignments import Layout, Plan
    from millrace.core.ids import TopicPartition

_POLL_S: Final = 0.5
_plan_argument: Final = click.argument(
    "plan_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PLAN"
)


@click.group(no_args_is_help=True)
def reassign() -> None:
    """Move replicas between brokers: even out, drain a broker, or fill a new one."""


COMMAND: Final = reassign


@reassign.command()
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option(
    "--drain", "drained", multiple=True, type=int, metavar="N", help="Leave nothing on broker N. Repeatable."
)
@click.option(
    "-o",
    "--output",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PLAN",
    help="Write the plan to this file; without it, to standard output.",
)
@broker_options
def generate(
    topics: tuple[str, ...], drained: tuple[int, ...], plan_file: Path | None, **address: Any
) -> None:
    """Plan an even spread over brokers and racks with the fewest moves. Nothing is changed by it.

    The plan is in the format of Kafka's kafka-reassign-partitions.
    """
    from millrace.cli import broker_requests
    from millrace.cli.reassignments import BadPlan, read_layout, write_plan
    from millrace.core.ids import NodeId
    from millrace.metadata.balance import plan_balance

    where = BrokerAddress(**address)
    with broker_requests.connected(where) as broker:
        layout = read_layout(broker)
    known = {name.topic for name in layout.replicas}
    for topic in topics:
        if topic not in known:
            raise BadPlan(f"there is no topic {topic!r}")
    for node_id in drained:
        if node_id not in layout.racks:
            raise BadPlan(f"broker {node_id} is not there; running: {sorted(layout.racks)}")
    chosen = {name: nodes for name, nodes in layout.replicas.items() if not topics or name.topic in topics}
    plan = plan_balance(chosen, layout.racks, drained=[NodeId(node_id) for node_id in drained])
    _preview(layout, plan, where.timeout_s)
    if plan_file is None:
        click.echo(write_plan(plan), nl=False)
    else:
        plan_file.write_text(write_plan(plan), encoding="utf-8")
        log_line(f"wrote {plan_file}: `millrace reassign execute {plan_file}` carries it out")


@reassign.command()
@_plan_argument
@click.option("--dry-run", is_flag=True, help="Show what would move, and change nothing.")
@click.option("--wait", "is_waiting", is_flag=True, help="Stay until everything has moved.")
@click.option(
    "--save-previous",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a plan that leads back.",
)
@broker_options
def execute(
    plan_file: Path, dry_run: bool, is_waiting: bool, save_previous: Path | None, **address: Any
) -> None:
    """Begin the moves of PLAN. They go on when this command has ended."""
    from millrace.cli import broker_requests
    from millrace.cli.clients import RequestFailed
    from millrace.cli.reassignments import check_plan, read_layout, read_plan, submit, write_plan

    where = BrokerAddress(**address)
    plan = read_plan(plan_file)
    with broker_requests.connected(where) as broker:
        layout = read_layout(broker)
        check_plan(plan, layout)
        _preview(layout, plan, where.timeout_s)
        if dry_run:
            return
        if save_previous is not None:
            previous = {name: layout.replicas[name] for name in plan}
            save_previous.write_text(write_plan(previous), encoding="utf-8")
        refused = submit(broker, dict(plan))
        for line in refused:
            log_line(line)
        if refused:
            raise RequestFailed(f"{len(refused)} of {len(plan)} moves were refused")
        log_line(f"{len(plan)} partitions are to move")
        if is_waiting:
            _wait(broker, plan)


@reassign.command()
@_plan_argument
@click.option("--wait", "is_waiting", is_flag=True, help="Stay until everything has moved.")
@json_option
@broker_options
def verify(plan_file: Path, is_waiting: bool, as_json: bool, **address: Any) -> None:
    """Show how far the moves of PLAN are. Exit code 1 while any is not done."""
    from millrace.cli import broker_requests
    from millrace.cli.reassignments import moving, read_layout, read_plan

    plan = read_plan(plan_file)
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        if is_waiting:
            _wait(broker, plan)
        under_way = moving(broker)
        layout = read_layout(broker)
    states = {name: _state(name, plan, layout, name in under_way) for name in plan}
    if as_json:
        for name, state in states.items():
            print_json({"topic": name.topic, "partition": name.partition, "state": state})
    else:
        print_table(
            ("PARTITION", "STATE", "REPLICAS", "IN SYNC"),
            [
                (name, state, _now(layout.replicas, name), _now(layout.in_sync, name))
                for name, state in states.items()
            ],
        )
    if any(state != "done" for state in states.values()):
        raise click.exceptions.Exit(1)


@reassign.command()
@click.argument(
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="[PLAN]",
    required=False,
)
@broker_options
def cancel(plan_file: Path | None, **address: Any) -> None:
    """Stop the moves of PLAN that are under way, or all of them; what has moved stays where it is."""
    from millrace.cli import broker_requests
    from millrace.cli.clients import RequestFailed
    from millrace.cli.reassignments import moving, read_plan, submit

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        under_way = moving(broker)
        chosen = read_plan(plan_file) if plan_file is not None else under_way
        stopped = {name: None for name in chosen if name in under_way}
        if not stopped:
            log_line("nothing moves")
            return
        refused = submit(broker, stopped)
    for line in refused:
        log_line(line)
    log_line(f"{len(stopped) - len(refused)} moves are cancelled")
    if refused:
        raise RequestFailed(f"{len(refused)} could not be cancelled")


def _preview(layout: Layout, plan: Plan, timeout_s: float) -> None:
    """On standard error: the plan itself may go to standard output."""
    from millrace.cli.reassignments import bytes_to_move, read_sizes

    after = {**layout.replicas, **plan}
    arriving = bytes_to_move(layout, plan, read_sizes(layout, timeout_s))
    for node_id in sorted({*layout.racks, *(node for nodes in after.values() for node in nodes)}):
        before_count = sum(node_id in nodes for nodes in layout.replicas.values())
        after_count = sum(node_id in nodes for nodes in after.values())
        leads = sum(nodes[0] == node_id for nodes in after.values())
        log_line(
            f"broker {node_id}: replicas {before_count} -> {after_count}, preferred leader of {leads}, "
            f"{_size(arriving.get(node_id, 0))} to copy there"
        )
    log_line(f"{len(plan)} partitions change, {_size(sum(arriving.values()))} to copy")


def _wait(broker: Connection, plan: Plan) -> None:
    from millrace.cli.reassignments import moving

    with progress("moving partitions", total=len(plan)) as bar:
        done = 0
        while done < len(plan):
            under_way = moving(broker)
            now_done = sum(name not in under_way for name in plan)
            bar.advance(now_done - done, note=f"{now_done}/{len(plan)}")
            done = now_done
            if done < len(plan):
                time.sleep(_POLL_S)


def _state(name: TopicPartition, plan: Plan, layout: Layout, is_moving: bool) -> str:
    if name not in layout.replicas:
        return "gone"
    if is_moving:
        return "moving"
    return "done" if layout.replicas[name] == plan[name] else "elsewhere"


def _now(nodes_of: Plan, name: TopicPartition) -> str:
    return ",".join(map(str, nodes_of.get(name, ())))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
