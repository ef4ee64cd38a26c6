"""`millrace reassign`: plan moves of replicas, see what they cost, carry them out, follow and cancel them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import log_line, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millrace.cli.broker_requests import Connection
    from millrace.cli.reassign.log_dir_moves import Places
    from millrace.cli.reassign.reassignments import Layout, Plan
    from millrace.core.ids import TopicPartition

_plan_argument: Final = click.argument(
    "plan_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PLAN"
)
_output_option: Final = click.option(
    "-o",
    "--output",
    "output_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PLAN",
    help="Write the plan to this file; without it, to standard output.",
)
_wait_option: Final = click.option(
    "--wait", "is_waiting", is_flag=True, help="Stay until everything has moved, and remove the throttle."
)
_keep_option: Final = click.option(
    "--keep-throttle", is_flag=True, help="Leave the throttles of the moves as they are."
)


def _rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    from millrace.core.units import parse_bytes_per_s

    try:
        rate = int(parse_bytes_per_s(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if rate < 1:
        raise click.BadParameter("the rate must be at least one byte each second")
    return rate


_throttle_option: Final = click.option(
    "--throttle",
    "rate",
    callback=_rate,
    metavar="RATE",
    help="Copy at most this much each second to and from each broker, such as 10MB. Given again for the same "
    "plan, it changes the rate. Replicas in sync are not held back.",
)


@click.group(no_args_is_help=True)
def reassign() -> None:
    """Move replicas between brokers: even out, drain a broker, or fill a new one."""


COMMAND: Final = reassign


@reassign.command()
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option(
    "--drain",
    "drained",
    multiple=True,
    type=int,
    metavar="N",
    help="Leave nothing on broker N, which may be down. Repeatable.",
)
@_output_option
@broker_options
def generate(
    topics: tuple[str, ...], drained: tuple[int, ...], output_file: Path | None, **address: Any
) -> None:
    """Plan an even spread over brokers and racks with the fewest moves. This changes nothing yet.

    The plan is in the format of Kafka's kafka-reassign-partitions.
    """
    from millrace.cli import broker_requests
    from millrace.cli.reassign.reassignments import BadPlan, read_layout
    from millrace.core.ids import NodeId
    from millrace.metadata.balance import plan_balance

    where = BrokerAddress(**address)
    with broker_requests.connected(where) as broker:
        layout = read_layout(broker)
    known = {name.topic for name in layout.replicas}
    for topic in topics:
        if topic not in known:
            raise BadPlan(f"there is no topic {topic!r}")
    # A broker that is down for good can be drained too: others have what it holds.
    holding = {node_id for nodes in layout.replicas.values() for node_id in nodes}
    _check_running(layout, [node_id for node_id in drained if node_id not in holding])
    chosen = {name: nodes for name, nodes in layout.replicas.items() if not topics or name.topic in topics}
    plan = plan_balance(chosen, layout.racks, drained=[NodeId(node_id) for node_id in drained])
    _preview(layout, plan, where)
    _write(plan, output_file)


@reassign.command()
@click.argument("node_ids", nargs=-1, type=int, required=True, metavar="N...")
@click.option("--execute", "is_executing", is_flag=True, help="Begin the moves at once.")
@_output_option
@_throttle_option
@_wait_option
@broker_options
def fill(
    node_ids: tuple[int, ...],
    is_executing: bool,
    output_file: Path | None,
    rate: int | None,
    is_waiting: bool,
    **address: Any,
) -> None:
    """Plan moves to the brokers N until they have their share of the replicas, and no other moves.

    With auto.rebalance.new.brokers=true the controller does this by itself for brokers that are new.
    """
    from millrace.cli import broker_requests
    from millrace.cli.reassign.reassignments import read_layout
    from millrace.core.ids import NodeId
    from millrace.metadata.balance import plan_fill

    if not is_executing and (rate is not None or is_waiting):
        raise click.UsageError("--throttle and --wait go with --execute")
    where = BrokerAddress(**address)
    with broker_requests.connected(where) as broker:
        layout = read_layout(broker)
        _check_running(layout, node_ids)
        plan: Plan = {}
        for node_id in node_ids:
            so_far = {**layout.replicas, **plan}
            plan |= plan_fill(so_far, layout.racks, NodeId(node_id))
        _preview(layout, plan, where, rate)
        if output_file is not None or not is_executing:
            _write(plan, output_file)
        if is_executing:
            _begin(broker, layout, plan, rate, where)
            if is_waiting:
                _finish(broker, layout, plan, rate, where)


@reassign.command()
@_plan_argument
@click.option("--dry-run", is_flag=True, help="Show what would move, and change nothing.")
@_throttle_option
@_wait_option
@click.option(
    "--save-previous",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a plan that leads back.",
)
@broker_options
def execute(
    plan_file: Path,
    dry_run: bool,
    rate: int | None,
    is_waiting: bool,
    save_previous: Path | None,
    **address: Any,
) -> None:
    """Begin the moves of PLAN. They go on when this command has ended.

    With log_dirs in the plan, replicas move between the data directories of their brokers, too.
    """
    from millrace.cli import broker_requests
    from millrace.cli.reassign import log_dir_moves
    from millrace.cli.reassign.reassignments import check_plan, read_layout, read_plan, write_plan

    where = BrokerAddress(**address)
    plan = read_plan(plan_file)
    wishes = log_dir_moves.read_wishes(plan_file)
    with broker_requests.connected(where) as broker:
        layout = read_layout(broker)
        check_plan(plan, layout)
        _preview(layout, plan, where, rate)
        if dry_run:
            return
        if save_previous is not None:
            previous = {name: layout.replicas[name] for name in plan}
            places = log_dir_moves.places_now(layout, wishes, where)
            save_previous.write_text(write_plan(previous, places), encoding="utf-8")
        _begin_log_dirs(layout, wishes, where)
        _begin(broker, layout, plan, rate, where)
        if is_waiting:
            _finish(broker, layout, plan, rate, where)
            log_dir_moves.wait_until_moved(layout, wishes, where)
        elif rate is not None:
            log_line(f"`millrace reassign verify {plan_file}` removes the throttle when all has moved")


@reassign.command()
@_plan_argument
@_wait_option
@_keep_option
@json_option
@broker_options
def verify(plan_file: Path, is_waiting: bool, keep_throttle: bool, as_json: bool, **address: Any) -> None:
    """Show how far the moves of PLAN are. The exit code is 1 while any is not done.

    When none of them is under way any more, this removes their throttles.
    """
    from millrace.cli import broker_requests
    from millrace.cli.reassign import log_dir_moves
    from millrace.cli.reassign.progress import wait_until_moved
    from millrace.cli.reassign.reassignments import moving, read_layout, read_plan

    where = BrokerAddress(**address)
    plan = read_plan(plan_file)
    wishes = log_dir_moves.read_wishes(plan_file)
    with broker_requests.connected(where) as broker:
        if is_waiting:
            wait_until_moved(broker, read_layout(broker), plan, rate=None, where=where)
        under_way = moving(broker)
        layout = read_layout(broker)
        if not keep_throttle:
            _unthrottle(broker, layout, plan, under_way, where)
    if is_waiting:
        log_dir_moves.wait_until_moved(layout, wishes, where)
    replicas = log_dir_moves.states(layout, wishes, where)
    states = {
        name: log_dir_moves.state_of_partition(name, replicas, _state(name, plan, layout, name in under_way))
        for name in plan
    }
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
@_keep_option
@broker_options
def cancel(plan_file: Path | None, keep_throttle: bool, **address: Any) -> None:
    """Stop the moves of PLAN that are under way, or all of them, and remove their throttles; what has moved
    stays where it is."""
    from millrace.cli import broker_requests
    from millrace.cli.clients import RequestFailed
    from millrace.cli.reassign.reassignments import moving, read_layout, read_plan, submit

    where = BrokerAddress(**address)
    with broker_requests.connected(where) as broker:
        under_way = moving(broker)
        chosen = read_plan(plan_file) if plan_file is not None else under_way
        stopped = {name: None for name in chosen if name in under_way}
        refused = submit(broker, stopped) if stopped else []
        if not keep_throttle:
            _unthrottle(broker, read_layout(broker), chosen, moving(broker), where)
    if not stopped:
        log_line("nothing moves")
        return
    for line in refused:
        log_line(line)
    log_line(f"{len(stopped) - len(refused)} moves are cancelled")
    if refused:
        raise RequestFailed(f"{len(refused)} could not be cancelled")


def _check_running(layout: Layout, node_ids: Iterable[int]) -> None:
    from millrace.cli.reassign.reassignments import BadPlan

    for node_id in node_ids:
        if node_id not in layout.racks:
            raise BadPlan(f"broker {node_id} is not there; running: {sorted(layout.racks)}")


def _write(plan: Plan, plan_file: Path | None) -> None:
    from millrace.cli.reassign.reassignments import write_plan

    if plan_file is None:
        click.echo(write_plan(plan), nl=False)
    else:
        plan_file.write_text(write_plan(plan), encoding="utf-8")
        log_line(f"wrote {plan_file}: `millrace reassign execute {plan_file}` carries it out")


def _begin_log_dirs(layout: Layout, wishes: Places, where: BrokerAddress) -> None:
    """Ask for directories before replicas move between brokers: each is then made in the right one."""
    from millrace.cli.clients import RequestFailed
    from millrace.cli.reassign import log_dir_moves

    refused = log_dir_moves.ask(layout, wishes, where)
    for line in refused:
        log_line(line)
    if refused:
        raise RequestFailed(f"{len(refused)} of {len(wishes)} moves between directories were refused")
    if wishes:
        log_line(f"{len(wishes)} replicas are to be in other directories of their brokers")


def _begin(broker: Connection, layout: Layout, plan: Plan, rate: int | None, where: BrokerAddress) -> None:
    """Begin the moves, the throttle first: until it is set, they would take the whole line."""
    from millrace.cli.clients import RequestFailed
    from millrace.cli.reassign.reassignments import moving, submit
    from millrace.cli.reassign.throttles import set_throttles, throttled_replicas

    if rate is not None:
        set_throttles(broker, layout, throttled_replicas(plan, layout, moving(broker)), rate, where)
    refused = submit(broker, dict(plan)) if plan else []
    for line in refused:
        log_line(line)
    if refused:
        if rate is not None:
            _unthrottle(broker, layout, plan, moving(broker), where)
        raise RequestFailed(f"{len(refused)} of {len(plan)} moves were refused")
    log_line(f"{len(plan)} partitions are to move")


def _finish(broker: Connection, layout: Layout, plan: Plan, rate: int | None, where: BrokerAddress) -> None:
    from millrace.cli.reassign.progress import wait_until_moved
    from millrace.cli.reassign.reassignments import moving

    wait_until_moved(broker, layout, plan, rate=rate, where=where)
    if rate is not None:
        _unthrottle(broker, layout, plan, moving(broker), where)


def _unthrottle(
    broker: Connection,
    layout: Layout,
    names: Iterable[TopicPartition],
    under_way: Iterable[TopicPartition],
    where: BrokerAddress,
) -> None:
    """Remove throttles once all these moves have arrived or stopped, and the rates of brokers once nothing
    moves at all."""
    from millrace.cli.reassign.throttles import clear_throttles

    still = set(under_way)
    chosen = list(names)
    if any(name in still for name in chosen):
        return
    if clear_throttles(broker, layout, chosen, with_rates=not still, where=where):
        log_line("the throttles of these moves are removed")


def _preview(layout: Layout, plan: Plan, where: BrokerAddress, rate: int | None = None) -> None:
    """Show what would move, on standard error: the plan itself may go to standard output."""
    from millrace.cli.reassign.progress import size_text
    from millrace.cli.reassign.reassignments import bytes_to_move, read_replica_sizes, sizes_of_leaders
    from millrace.core.units import seconds_text

    after = {**layout.replicas, **plan}
    arriving = bytes_to_move(layout, plan, sizes_of_leaders(layout, read_replica_sizes(layout, where)))
    for node_id in sorted({*layout.racks, *(node for nodes in after.values() for node in nodes)}):
        before_count = sum(node_id in nodes for nodes in layout.replicas.values())
        after_count = sum(node_id in nodes for nodes in after.values())
        leads = sum(nodes[0] == node_id for nodes in after.values())
        log_line(
            f"broker {node_id}: replicas {before_count} -> {after_count}, preferred leader of {leads}, "
            f"{size_text(arriving.get(node_id, 0))} to copy there"
        )
    log_line(f"{len(plan)} partitions change, {size_text(sum(arriving.values()))} to copy")
    most = max(arriving.values(), default=0)
    if rate is not None and most:
        log_line(f"at {size_text(rate)} each second this takes {seconds_text(most / rate)} or more")


def _state(name: TopicPartition, plan: Plan, layout: Layout, is_moving: bool) -> str:
    if name not in layout.replicas:
        return "gone"
    if is_moving:
        return "moving"
    return "done" if layout.replicas[name] == plan[name] else "elsewhere"


def _now(nodes_of: Plan, name: TopicPartition) -> str:
    return ",".join(map(str, nodes_of.get(name, ())))
