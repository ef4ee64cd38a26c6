"""The `log_dirs` of a plan of reassignments: in which data directory of its broker each replica is to be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from millrace.cli.data_directories import broker_connection, directories_of, move
from millrace.cli.reassign.reassignments import BadPlan
from millrace.core.ids import NodeId, TopicPartition
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.cli.options import BrokerAddress
    from millrace.cli.reassign.reassignments import Layout

ANY: Final = "any"
"""In a plan: the replica stays where it is, or goes where the broker likes."""
_POLL_S: Final = 0.5

Places = dict[tuple[TopicPartition, NodeId], str]
"""The directory of each replica."""


def read_wishes(path: Path) -> Places:
    """What a plan says of directories, which may be nothing. `read_plan` has checked the rest of it."""
    wishes: Places = {}
    for entry in orjson.loads(path.read_bytes())["partitions"]:
        directories = entry.get("log_dirs")
        if directories is None:
            continue
        name = TopicPartition(str(entry["topic"]), int(entry["partition"]))
        nodes = entry["replicas"]
        if not isinstance(directories, list) or len(directories) != len(nodes):
            raise BadPlan(f"{path}: {name} has {len(nodes)} replicas, and log_dirs must name as many")
        for node_id, directory in zip(nodes, directories, strict=True):
            if directory != ANY:
                wishes[name, NodeId(int(node_id))] = str(directory)
    return wishes


def ask(layout: Layout, wishes: Places, where: BrokerAddress) -> list[str]:
    """Tell each broker where its replicas are to be, even those that it does not have yet; return what was
    refused, in words."""
    refused = []
    for node_id in sorted({node_id for _, node_id in wishes}):
        own = {name: path for (name, node), path in wishes.items() if node == node_id}
        with broker_connection(layout.addresses[node_id], where) as connection:
            for name, code in move(connection, own).items():
                # A replica that comes later is made in the directory that was asked for.
                if code not in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE):
                    refused.append(f"{name} on broker {node_id} to {own[name]}: {code.message}")
    return refused


def states(layout: Layout, wishes: Places, where: BrokerAddress) -> dict[tuple[TopicPartition, NodeId], str]:
    """For each replica with a wish: done, moving or elsewhere."""
    held, arriving = _places(layout, [node_id for _, node_id in wishes], where)
    found = {}
    for replica, path in wishes.items():
        if held.get(replica) == path.rstrip("/") and replica not in arriving:
            found[replica] = "done"
        else:
            found[replica] = "moving" if arriving.get(replica) == path.rstrip("/") else "elsewhere"
    return found


def places_now(layout: Layout, wishes: Places, where: BrokerAddress) -> Places:
    """Where the replicas are that the wishes are about."""
    held, _ = _places(layout, [node_id for _, node_id in wishes], where)
    return {replica: held[replica] for replica in wishes if replica in held}


def wait_until_moved(layout: Layout, wishes: Places, where: BrokerAddress) -> None:
    """Return when no replica with a wish moves any more."""
    while "moving" in states(layout, wishes, where).values():
        time.sleep(_POLL_S)


def state_of_partition(
    name: TopicPartition, replicas: Mapping[tuple[TopicPartition, NodeId], str], otherwise: str
) -> str:
    """A partition has moved when all its replicas are where they should be."""
    own = [state for (partition, _), state in replicas.items() if partition == name]
    if otherwise != "done" or not own:
        return otherwise
    return next((state for state in ("moving", "elsewhere") if state in own), "done")


def _places(layout: Layout, node_ids: list[NodeId], where: BrokerAddress) -> tuple[Places, Places]:
    held: Places = {}
    arriving: Places = {}
    for node_id in dict.fromkeys(node_ids):
        if node_id not in layout.addresses:
            continue
        with broker_connection(layout.addresses[node_id], where) as connection:
            for directory in directories_of(connection, node_id):
                for replica in directory.replicas:
                    name = TopicPartition(replica.topic, replica.partition)
                    places = arriving if replica.is_arriving else held
                    places[name, node_id] = replica.directory
    return held, arriving
