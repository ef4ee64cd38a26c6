"""`millrace pipeline capacity`: a plan for a load, and the worked examples. Needs no Spark and no broker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import json_option
from millrace.cli.output import print_json, print_table
from millrace.core import units
from millrace.core.override import override

if TYPE_CHECKING:
    from millrace.pipeline.capacity.estimate import Broker, Load, Plan
    from millrace.pipeline.capacity.examples import Example
    from millrace.pipeline.capacity.measured import Figures


class Quantity(click.ParamType):  # type: ignore[type-arg]  # older versions of click take none
    """A number with a unit."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


COUNT: Final = Quantity("count", units.parse_count)
SIZE: Final = Quantity("size", units.parse_bytes)
RATE: Final = Quantity("rate", units.parse_bytes_per_s)
DURATION: Final = Quantity("duration", units.parse_seconds)


@click.command("capacity")
@click.option("--messages", type=COUNT, metavar="NUMBER", help="Messages for each second: 250000, 1M.")
@click.option("--size", type=SIZE, metavar="SIZE", help="Key and value of a message: 1KB.")
@click.option(
    "--retention", type=DURATION, default="7d", show_default=True, metavar="TIME", help="How long to keep it."
)
@click.option("--replication", type=click.IntRange(min=1), default=3, show_default=True, help="Replicas.")
@click.option(
    "--groups",
    type=click.FloatRange(min=0),
    default=1,
    show_default=True,
    help="Consumer groups that each read everything.",
)
@click.option(
    "--peak", type=click.FloatRange(min=1), default=1, show_default=True, help="Busiest minutes over average."
)
@click.option(
    "--compression",
    type=click.FloatRange(min=0.1),
    default=1,
    show_default=True,
    help="Bytes before over after compression by producers.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=0),
    default=0,
    help="Partitions that there must be anyhow, of all topics.",
)
@click.option(
    "--consumer-rate", type=RATE, default="10MB", show_default=True, help="What one consumer manages."
)
@click.option("--disk", type=SIZE, default="4TB", show_default=True, help="Disk of one broker.")
@click.option(
    "--disk-fill", type=click.FloatRange(0.01, 1), default=0.75, show_default=True, help="Share to fill."
)
@click.option("--network", type=RATE, default="10Gbit", show_default=True, help="Network of one broker.")
@click.option(
    "--busy",
    type=click.FloatRange(0.01, 1),
    default=0.6,
    show_default=True,
    help="Planned share of processor and network.",
)
@click.option("--broker-write", type=RATE, help="What one broker writes at full load [measured].")
@click.option("--broker-read", type=RATE, help="What one broker serves at full load [measured].")
@click.option("--partition-write", type=RATE, help="What one partition takes at most [measured].")
@click.option(
    "--partitions-per-broker",
    type=click.IntRange(min=1),
    default=4000,
    show_default=True,
    help="Replicas that one broker holds at most.",
)
@click.option(
    "--spare", type=click.IntRange(min=0), default=1, show_default=True, help="Brokers that may be down."
)
@click.option(
    "--measured",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Result of `make bench` (file or directory) instead of the figures that Millrace brings along.",
)
@click.option("--example", metavar="NAME", help="Show a worked example, or `all` of them.")
@json_option
def capacity(**options: Any) -> None:
    """Plan brokers, partitions, disk and network for a load.

    \b
    millrace pipeline capacity --messages 1M --size 1KB --retention 7d
    millrace pipeline capacity --example all

    What a broker can do comes from measurements on one machine; --measured takes yours.
    """
    from millrace.pipeline.capacity import measured
    from millrace.pipeline.capacity.estimate import Load, Policy, make_plan

    figures = measured.SHIPPED if options["measured"] is None else measured.load_figures(options["measured"])
    if options["example"] is not None:
        _show_examples(options["example"], figures, options["as_json"])
        return
    if options["messages"] is None or options["size"] is None:
        raise click.UsageError("Name a load with --messages and --size, or an --example.")
    load = Load(
        messages_per_s=options["messages"],
        message_bytes=options["size"],
        retention_s=options["retention"],
        replication=options["replication"],
        consumer_groups=options["groups"],
        peak=options["peak"],
        compression=options["compression"],
        partitions=options["partitions"],
    )
    policy = Policy(consumer_bytes_per_s=options["consumer_rate"], spare_brokers=options["spare"])
    broker = _broker(options, figures)
    plan = make_plan(load, broker, policy)
    if options["as_json"]:
        print_json(
            {"load": dataclasses.asdict(load), "plan": dataclasses.asdict(plan), "from": figures.source}
        )
    else:
        _print_plan(load, plan, figures)


COMMANDS: Final = {"capacity": capacity}


def _broker(options: dict[str, Any], figures: Figures) -> Broker:
    from millrace.pipeline.capacity.estimate import Broker

    size = options["size"]
    write, read = options["broker_write"], options["broker_read"]
    return Broker(
        write_s_per_gb=1e9 / write if write else figures.write_at(size),
        read_s_per_gb=1e9 / read if read else figures.read_at(size),
        partition_bytes_per_s=options["partition_write"] or figures.partition_bytes_per_s_at(size),
        disk_bytes=options["disk"],
        network_bytes_per_s=options["network"],
        partitions=options["partitions_per_broker"],
        busy=options["busy"],
        disk_fill=options["disk_fill"],
    )


def _print_plan(load: Load, plan: Plan, figures: Figures) -> None:
    from millrace.pipeline.capacity.estimate import summary

    text = units.bytes_text
    click.echo(f"{summary(load)}\n")
    print_table(
        ("NEEDED", "NUMBER", "WHY"),
        [
            ("brokers", f"{plan.brokers:,}", _deciding(plan.broker_needs)),
            ("partitions", f"{plan.partitions:,}", _deciding(plan.partition_needs)),
            ("  spread evenly", f"{plan.partitions_even:,}", "as many leaders on each broker"),
            ("rate in", f"{text(plan.write_bytes_per_s)}/s", "stored bytes, at the peak"),
            ("disk", text(plan.disk_bytes), f"all replicas; {text(plan.disk_bytes_per_day)} a day"),
            ("  of each broker", text(plan.disk_bytes_per_broker), ""),
            ("network in", f"{text(plan.network_in_per_broker)}/s", "of each broker: producers, replication"),
            (
                "network out",
                f"{text(plan.network_out_per_broker)}/s",
                "of each broker: replication, consumers",
            ),
            ("processor", f"{plan.busy_share:.0%}", "of one core, on each broker"),
        ],
        right=("NUMBER",),
    )
    click.echo("\nBrokers and partitions by each need:")
    needs = [("brokers", need) for need in plan.broker_needs]
    needs += [("partitions", need) for need in plan.partition_needs]
    print_table(
        ("OF", "FOR", "AT LEAST", "BECAUSE"),
        [(kind, need.name, f"{need.count:,}", need.because) for kind, need in needs],
        right=("AT LEAST",),
    )
    click.echo("")
    for note in (*plan.notes, f"figures of a broker: {figures.source}"):
        click.echo(f"- {note}")


def _deciding(needs: tuple[Any, ...]) -> str:
    most = max(needs, key=lambda need: need.count)
    return f"{most.name} decides: {most.because}"


def _show_examples(name: str, figures: Figures, as_json: bool) -> None:
    from millrace.pipeline.capacity.examples import EXAMPLES, example_named

    chosen = example_named(name)
    if name != "all" and chosen is None:
        names = ", ".join(example.name for example in EXAMPLES)
        raise click.BadParameter(
            f"no example is called {name!r}; there are all, {names}", param_hint="'--example'"
        )
    for example in EXAMPLES if chosen is None else (chosen,):
        _show_example(example, figures, as_json)


def _show_example(example: Example, figures: Figures, as_json: bool) -> None:
    from millrace.pipeline.capacity.estimate import Broker, make_plan

    size = example.load.message_bytes
    ours = Broker(
        write_s_per_gb=figures.write_at(size),
        read_s_per_gb=figures.read_at(size),
        partition_bytes_per_s=figures.partition_bytes_per_s_at(size),
    )
    on_paper = make_plan(example.load, example.paper_broker, example.paper_policy)
    measured = make_plan(example.load, ours)
    rows = [
        (estimate.what, estimate.on_paper, estimate.of_plan(on_paper), estimate.of_plan(measured))
        for estimate in example.estimates
    ]
    if as_json:
        print_json({"example": example.name, "load": dataclasses.asdict(example.load), "rows": rows})
        return
    click.echo(f"{example.name}: {example.about}")
    headings = ("FIGURE", "ESTIMATE", "PLAN, SAME ASSUMPTIONS", "PLAN, MEASURED BROKER")
    print_table(headings, rows, right=headings[1:])
    click.echo("")
