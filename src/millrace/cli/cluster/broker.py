"""`millrace broker`: which brokers belong to a cluster."""

from __future__ import annotations

from typing import Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options


@click.group(no_args_is_help=True)
def broker() -> None:
    """Take brokers out of a cluster."""


COMMAND: Final = broker


@broker.command()
@click.argument("node_id", type=click.IntRange(min=0), metavar="N")
@broker_options
def unregister(node_id: int, **address: Any) -> None:
    """Make the cluster forget broker N, which is down for good and holds nothing any more.

    The command refuses while the broker runs or holds replicas. If the broker is started again after all, it
    joins as a new one.
    """
    from millrace.cli import broker_requests
    from millrace.cli.clients import RequestFailed
    from millrace.cli.cluster import unregistration
    from millrace.cli.reassign.reassignments import read_layout
    from millrace.core.ids import NodeId

    with broker_requests.connected(BrokerAddress(**address)) as connection:
        refusal = unregistration.refusal(read_layout(connection), NodeId(node_id))
        if refusal is not None:
            raise RequestFailed(refusal)
        unregistration.unregister(connection, NodeId(node_id))
    click.echo(f"unregistered broker {node_id}")
