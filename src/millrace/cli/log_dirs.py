"""`millrace log-dirs`: what is in the data directories of brokers, and what moves between them."""

from __future__ import annotations

from typing import Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import print_json, print_table


@click.group(help="Show the data directories of brokers and what moves between them.", no_args_is_help=True)
def log_dirs() -> None:
    pass


COMMAND: Final = log_dirs


@log_dirs.command()
@click.option("--broker", "brokers", multiple=True, type=int, metavar="N", help="Only broker N. Repeatable.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option("--partitions", is_flag=True, help="A line for each replica instead of each directory.")
@json_option
@broker_options
def describe(
    brokers: tuple[int, ...], topics: tuple[str, ...], partitions: bool, as_json: bool, **address: Any
) -> None:
    """Show the data directories of all brokers: state, free space, replicas.

    A replica that is being copied from another directory of the same broker is shown as arriving, with the
    number of offsets that its copy lacks.
    """
    from millrace.cli import data_directories

    directories = data_directories.read(BrokerAddress(**address), brokers, topics)
    if partitions:
        rows = [row for directory in directories for row in directory.replicas]
        if as_json:
            for row in rows:
                print_json(row._asdict())
            return
        print_table(
            ("BROKER", "DIRECTORY", "TOPIC", "PARTITION", "BYTES", "LAG", "STATE"),
            [
                (
                    row.broker,
                    row.directory,
                    row.topic,
                    row.partition,
                    row.size_bytes,
                    row.lag,
                    "arriving" if row.is_arriving else "",
                )
                for row in rows
            ],
            right=("BROKER", "PARTITION", "BYTES", "LAG"),
        )
        return
    if as_json:
        for directory in directories:
            print_json(directory.summary())
        return
    print_table(
        ("BROKER", "DIRECTORY", "STATE", "REPLICAS", "ARRIVING", "BYTES", "FREE", "TOTAL"),
        [tuple(directory.summary().values()) for directory in directories],
        right=("BROKER", "REPLICAS", "ARRIVING", "BYTES", "FREE", "TOTAL"),
    )
