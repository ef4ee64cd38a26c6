"""Connections come in at their rate and in their number; the others wait, in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from millrace.broker.network import admission as module
from millrace.broker.network.admission import Admission, ConnectionLimits
from millrace.broker.network.context import Endpoint
from tests.unit.broker.timers import FakeLoop

ANY = 1 << 30


@dataclass(eq=False)
class Peer:
    loop: FakeLoop
    endpoint: Endpoint
    holds: int = 0
    idle_since: float = 0.0
    aborted: list[str] = field(default_factory=list)
    admission: Admission | None = None

    def hold(self) -> None:
        self.holds += 1

    def let_go(self) -> None:
        self.holds -= 1

    def stay_paused(self) -> None: ...

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)
        assert self.admission is not None
        self.admission.leave(cast("Any", self))


class Door:
    """An admission with its clock."""

    def __init__(self, *, addresses: dict[str, float] | None = None, **limits: Any) -> None:
        self.loop = FakeLoop()
        self.refused: list[str] = []
        self.admission = Admission(
            ConnectionLimits(**{"connections_max": ANY, "per_ip_max": ANY, **limits}),
            ticks=self.loop.time,
            rate_of_address=(addresses or {}).get,
            count_refused=self.refused.append,
        )

    def come(self, listener: str = "CLIENTS", host: str = "10.0.0.1") -> Peer | None:
        peer = Peer(self.loop, Endpoint("", 0, host, 0, listener), admission=self.admission)
        return peer if self.admission.enter(cast("Any", peer)) else None

    def leave(self, peer: Peer | None) -> None:
        assert peer is not None
        self.admission.leave(cast("Any", peer))


def held(*peers: Peer | None) -> list[int]:
    return [-1 if peer is None else peer.holds for peer in peers]


def test_those_over_the_number_wait_and_come_in_in_their_order() -> None:
    door = Door(connections_max=2)
    peers = [door.come() for _ in range(5)]
    assert held(*peers) == [0, 0, 1, 1, 1]
    assert door.admission.waiting_count == 3
    door.leave(peers[3])
    door.leave(peers[0])
    assert held(*peers) == [0, 0, 0, 1, 1]
    door.leave(peers[1])
    assert held(*peers) == [0, 0, 0, 1, 0]
    assert door.admission.throttled == {"waited": 3}
    assert not door.refused


def test_an_address_with_too_many_is_refused() -> None:
    door = Door(per_ip_max=1, per_ip_overrides={"10.0.0.2": 2})
    assert door.come() is not None
    assert door.come() is None
    assert [door.come(host="10.0.0.2") is None for _ in range(3)] == [False, False, True]
    assert door.refused == ["connection_limit"] * 2


def test_a_listener_has_its_own_number_beside_the_brokers() -> None:
    door = Door(connections_max=3, listener_max={"FEW": 1})
    few = [door.come("FEW") for _ in range(2)]
    many = [door.come("MANY") for _ in range(3)]
    assert held(*few) == [0, 1]
    assert held(*many) == [0, 0, 1]
    door.leave(many[0])
    assert held(*few) == [0, 1]
    assert held(*many) == [0, 0, 0]


def test_brokers_come_in_always_and_the_client_that_was_silent_for_longest_goes() -> None:
    door = Door(connections_max=2, protected_listener="BROKERS")
    clients = [door.come() for _ in range(2)]
    for peer, since in zip(clients, (5.0, 3.0), strict=True):
        assert peer is not None
        peer.idle_since = since
    broker = door.come("BROKERS")
    assert held(broker) == [0]
    assert [bool(peer and peer.aborted) for peer in clients] == [False, True]
    assert door.refused == ["connection_limit"]
    waits = door.come()
    assert held(waits) == [1]
    door.leave(broker)
    assert held(waits) == [0]


def test_connections_come_at_the_rate_of_the_broker_after_a_burst() -> None:
    door = Door(rate=10.0)
    peers = [door.come() for _ in range(300)]
    # What ten seconds allow comes at once, then one after the other.
    assert held(*peers).count(0) == 100
    seen = []
    for _ in range(20):
        door.loop.advance(1.0)
        seen.append(held(*peers).count(0))
    assert seen == sorted(seen)
    assert 200 < seen[-1] <= 100 + 200
    waiting = [number for number, peer in enumerate(peers) if peer and peer.holds]
    assert waiting == list(range(seen[-1], 300)), "in their order"


def test_a_listener_that_waits_holds_up_no_other() -> None:
    door = Door(listener_rates={"SLOW": 1.0}, rate=1e9, protected_listener="BROKERS")
    slow = [door.come("SLOW") for _ in range(30)]
    assert held(*slow).count(0) == 10
    assert held(door.come("FAST"), door.come("BROKERS")) == [0, 0]


def test_other_limits_count_for_those_who_wait() -> None:
    door = Door(connections_max=1)
    peers = [door.come() for _ in range(3)]
    assert held(*peers) == [0, 1, 1]
    door.admission.reconfigure(ConnectionLimits(connections_max=5, per_ip_max=ANY))
    assert held(*peers) == [0, 0, 0]


def test_an_address_that_comes_too_fast_is_held_and_closed() -> None:
    door = Door(addresses={"10.0.0.1": 1.0})
    peers = [door.come() for _ in range(12)]
    other = door.come(host="10.0.0.2")
    assert held(*peers) == [0] * 10 + [1] * 2
    assert held(other) == [0]
    assert all(peer is not None and not peer.aborted for peer in peers)
    door.loop.advance(1.0)
    assert [bool(peer and peer.aborted) for peer in peers] == [False] * 10 + [True] * 2
    assert door.admission.throttled == {"address_rate": 2}
    assert door.admission.waiting_count == 0


def test_who_ends_while_it_is_held_leaves_nothing_behind() -> None:
    door = Door(addresses={"10.0.0.1": 1.0})
    peers = [door.come() for _ in range(12)]
    for peer in peers:
        door.leave(peer)
    door.loop.advance(5.0)
    assert not any(peer and peer.aborted for peer in peers)
    assert door.admission.waiting_count == 0


def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    door = Door(connections_max=1)
    assert held(*(door.come() for _ in range(4))) == [0, 1, 1, -1]
    assert door.refused == ["connection_limit"]
