"""Which replicas a plan throttles, and how long the rest of it takes."""

from __future__ import annotations

from dataclasses import dataclass

import click
import pytest

from millrace.cli.reassign.commands import _rate
from millrace.cli.reassign.progress import Copies, seconds_left
from millrace.cli.reassign.reassignments import Layout, Plan
from millrace.cli.reassign.throttles import brokers_of, throttled_replicas
from millrace.core.ids import NodeId, TopicPartition

MB = 1_000_000


@dataclass
class UnderWay:
    adding_replicas: list[int]


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node_id) for node_id in ids)


def at(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def layout(*places: tuple[int, ...]) -> Layout:
    replicas = {at(number): nodes(*place) for number, place in enumerate(places)}
    return Layout(
        racks={NodeId(node_id): None for node_id in (1, 2, 3, 4)},
        addresses={},
        replicas=replicas,
        leaders={name: place[0] for name, place in replicas.items()},
        in_sync=replicas,
    )


def plan(*places: tuple[int, ...]) -> Plan:
    return {at(number): nodes(*place) for number, place in enumerate(places)}


def test_those_who_have_a_replica_send_it_and_those_who_get_one_fetch_it() -> None:
    found = throttled_replicas(plan((1, 3), (1, 2)), layout((1, 2), (1, 2)), {})
    assert list(found) == ["t"]
    assert list(found["t"].leaders) == ["0:1", "0:2"]
    assert list(found["t"].followers) == ["0:3"], "what stays where it is needs no throttle"
    assert brokers_of(found) == [1, 2, 3]


def test_a_move_under_way_is_throttled_as_it_was_at_its_beginning() -> None:
    found = throttled_replicas(plan((3, 1)), layout((3, 1, 2)), {at(0): UnderWay([3])})
    assert list(found["t"].leaders) == ["0:1", "0:2"]
    assert list(found["t"].followers) == ["0:3"]


def test_what_is_left_is_told_by_the_throttle_first_and_by_the_speed_later() -> None:
    sizes = {(at(0), NodeId(1)): 8 * MB, (at(1), NodeId(1)): 4 * MB}
    copies = Copies(layout((1, 2), (1, 2)), plan((1, 3), (1, 4)), sizes)
    assert copies.total_bytes == {(at(0), 3): 8 * MB, (at(1), 4): 4 * MB}
    copies.update({(at(0), NodeId(3)): 2 * MB}, [at(0), at(1)])
    assert copies.arrived_bytes == 2 * MB
    # Each broker has the rate for itself: the one with most left decides.
    assert seconds_left(copies, rate=MB, copied_bytes=2 * MB, elapsed_s=1.0) == 6.0
    assert seconds_left(copies, rate=None, copied_bytes=2 * MB, elapsed_s=1.0) is None
    assert seconds_left(copies, rate=MB, copied_bytes=2 * MB, elapsed_s=4.0) == 20.0
    copies.update({}, [])
    assert copies.arrived_bytes == 12 * MB, "whatever does not move any more has arrived"


@pytest.mark.parametrize(
    "text, rate", [("10MB", 10 * MB), ("10 MB/s", 10 * MB), ("1MiB", 1 << 20), ("5000", 5_000)]
)
def test_a_rate_is_written_as_people_write_it(text: str, rate: int) -> None:
    context, option = click.Context(click.Command("c")), click.Option(["--throttle"])
    assert _rate(context, option, text) == rate


@pytest.mark.parametrize("text", ["fast", "10XB", "0", "0.1"])
def test_anything_else_is_no_rate(text: str) -> None:
    context, option = click.Context(click.Command("c")), click.Option(["--throttle"])
    with pytest.raises(click.BadParameter):
        _rate(context, option, text)
