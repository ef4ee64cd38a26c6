"""Which partitions' state is at which endpoint."""

from __future__ import annotations

from millrace.groups.streams.commands import Endpoint, EndpointPartitions
from millrace.groups.streams.endpoints import endpoint_partitions
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.tasks import Role
from millrace.groups.streams.topology import Topology
from tests.unit.groups.streams.topologies import part, topology

HERE = Endpoint("here", 80)


def test_members_with_an_endpoint_show_the_partitions_of_their_tasks() -> None:
    found = Topology(topology(part("0", ["a", "b"])))
    shown = StreamsMember(
        member_id="m",
        endpoint=HERE,
        assigned={
            (Role.ACTIVE, "0"): {0: 1, 2: 1},
            (Role.STANDBY, "0"): {1: 1},
            (Role.ACTIVE, "gone"): {0: 1},
        },
    )
    hidden = StreamsMember(member_id="n", assigned=shown.assigned)
    # Topic b has two partitions, so task 2 reads nothing of it.
    assert endpoint_partitions([hidden, shown], found, {"a": 3, "b": 2}.get) == (
        EndpointPartitions(HERE, [("a", [0, 2]), ("b", [0])], [("a", [1]), ("b", [1])]),
    )
