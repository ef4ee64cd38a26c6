"""Many group members in one epoll loop, as thin as can be: join, sync, heartbeat, and what they were given.

Members behave as clients do: they rejoin when a heartbeat tells them so, the leader of a classic group hands
out the partitions, and a member of the new protocol gives up what is taken before it confirms what it is
given.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from typing_extensions import override

from benchmarks import group_frames as frames
from benchmarks import share_frames
from benchmarks.connection import Connection

RECEIVE_BYTES: Final = 256 * 1024
EVENTS_MAX: Final = 512
CONNECT_TIMEOUT_S: Final = 30.0
NO_ERROR: Final = b"\x00\x00"
TRANSIENT: Final = ("coordinator_load_in_progress", "coordinator_not_available", "not_coordinator")
RETRY_S: Final = 0.1


class Member:
    """One connection with at most one request under way."""

    def __init__(self, fleet: Fleet, group: str, topic: str) -> None:
        self.fleet = fleet
        self.group = group
        self.topic = topic
        self.socket = socket.create_connection(fleet.address, timeout=CONNECT_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.has_share = False
        """Whether it has its share of the newest generation, as far as it knows."""
        self.changed_at = time.perf_counter()
        """When it last heard something new."""
        self.partition_count = 0
        self.longest_answer_s = 0.0
        self._received = bytearray()
        self._sent_at = 0.0
        self._then: Callable[[bytes], None] | None = None

    def join(self) -> None:
        raise AssertionError("a subclass knows its protocol")

    def beat(self) -> None:
        """The time for a heartbeat has come."""
        raise AssertionError("a subclass knows its protocol")

    def ask(self, frame: bytes, then: Callable[[bytes], None]) -> None:
        assert self._then is None, "one request at a time"
        self._then = then
        self._sent_at = time.perf_counter()
        # Requests are a few hundred bytes, except a leader's SyncGroup.
        if self.socket.send(frame) != len(frame):
            raise BlockingIOError("a request does not fit into the socket buffer")

    @property
    def is_waiting(self) -> bool:
        return self._then is not None

    def receive(self) -> None:
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise ConnectionError("the broker closed the connection of a member")
        self._received += chunk
        if len(self._received) < 4:
            return
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size:
            return
        self.fleet.answer_count += 1
        answer, then = bytes(self._received[4:]), self._then
        self._received.clear()
        self._then = None
        self.longest_answer_s = max(self.longest_answer_s, time.perf_counter() - self._sent_at)
        assert then is not None, "an answer that nobody asked for"
        then(answer)


class ClassicMember(Member):
    """A member of the classic protocol."""

    def __init__(self, fleet: Fleet, group: str, topic: str, topic_partitions: int) -> None:
        super().__init__(fleet, group, topic)
        self.generation = -1
        self._topic_partitions = topic_partitions
        self._member_id = ""
        self._heartbeat = b""

    @override
    def join(self) -> None:
        self.has_share = False
        self.ask(frames.join_group(self.group, self._member_id, self.topic), self._joined)

    @override
    def beat(self) -> None:
        if self.has_share and not self.is_waiting:
            self.ask(self._heartbeat, self._beaten)

    def _joined(self, answer: bytes) -> None:
        joined = frames.decoded(frames.JOIN_GROUP, answer)
        error = joined["error_code"]
        if error == "member_id_required":
            self._member_id = joined["member_id"]
            self.join()
        elif error in TRANSIENT:
            self.fleet.later(RETRY_S, self.join)
        else:
            _require(error)
            self._member_id, self.generation = joined["member_id"], joined["generation_id"]
            members = [each["member_id"] for each in joined["members"]]
            self.ask(
                frames.sync_group(self.group, self._member_id, self.generation, self._shares(members)),
                self._synced,
            )

    def _shares(self, members: list[str]) -> dict[str, bytes]:
        """The share of each member; only the leader knows the members."""
        shares = {}
        for position, member in enumerate(sorted(members)):
            partitions = range(position, self._topic_partitions, len(members))
            shares[member] = frames.assignment(self.topic, partitions)
        return shares

    def _synced(self, answer: bytes) -> None:
        synced = frames.decoded(frames.SYNC_GROUP, answer)
        if synced["error_code"] == "rebalance_in_progress":
            self.join()
            return
        _require(synced["error_code"])
        self.partition_count = frames.assigned_count(bytes(synced["assignment"]))
        self._heartbeat = frames.heartbeat(self.group, self._member_id, self.generation)
        self.has_share = True
        self.changed_at = time.perf_counter()

    def _beaten(self, answer: bytes) -> None:
        at = frames.HEARTBEAT_ERROR_AT
        if answer[at : at + 2] == NO_ERROR:
            return
        error = frames.decoded(frames.HEARTBEAT, answer)["error_code"]
        if error == "rebalance_in_progress":
            self.join()
        else:
            _require(error)


class ConsumerMember(Member):
    """A member of the new protocol (KIP-848)."""

    def __init__(self, fleet: Fleet, group: str, topic: str) -> None:
        super().__init__(fleet, group, topic)
        self.epoch = 0
        self.owned: dict[uuid.UUID, set[int]] = {}
        self.given_up: set[tuple[uuid.UUID, int]] = set()
        self.got_back_count = 0
        self._member_id = str(uuid.uuid4())

    @override
    def join(self) -> None:
        # A heartbeat may have come before a second try.
        if not self.is_waiting:
            self._send(owned={})

    @override
    def beat(self) -> None:
        if not self.is_waiting:
            self._send(owned={} if self.epoch == 0 else None)

    def _send(self, owned: dict[uuid.UUID, set[int]] | None) -> None:
        sent = None if owned is None else {each: sorted(numbers) for each, numbers in owned.items()}
        self.ask(
            frames.consumer_heartbeat(self.group, self._member_id, self.epoch, self.topic, sent),
            self._answered,
        )

    def _answered(self, answer: bytes) -> None:
        beaten = frames.decoded(frames.CONSUMER_GROUP_HEARTBEAT, answer)
        if beaten["error_code"] in TRANSIENT:
            self.fleet.later(RETRY_S, self.join)
            return
        _require(beaten["error_code"])
        if self.epoch != beaten["member_epoch"]:
            self.epoch = beaten["member_epoch"]
            self.changed_at = time.perf_counter()
        self.has_share = True
        if beaten["assignment"] is not None:
            self.changed_at = time.perf_counter()
            self._reconcile(beaten["assignment"])

    def _reconcile(self, target: Any) -> None:
        wanted = {each["topic_id"]: set(each["partitions"]) for each in target["topic_partitions"]}
        before, after = _flat(self.owned), _flat(wanted)
        self.got_back_count += len((after - before) & self.given_up)
        self.given_up |= before - after
        self.owned = wanted
        self.partition_count = len(after)
        if before != after:
            # Clients confirm at once, so that the next owner need not wait.
            self._send(owned=wanted)


class ShareMember(Member):
    """A member of a share group (KIP-932): partitions are shared, and nobody gives any up."""

    def __init__(self, fleet: Fleet, group: str, topic: str) -> None:
        super().__init__(fleet, group, topic)
        self.epoch = 0
        self._member_id = str(uuid.uuid4())
        self._heartbeat = b""

    @override
    def join(self) -> None:
        # A heartbeat may have come before a second try.
        if not self.is_waiting:
            self.ask(share_frames.heartbeat(self.group, self._member_id, 0, [self.topic]), self._answered)

    @override
    def beat(self) -> None:
        if self.epoch == 0:
            self.join()
        elif not self.is_waiting:
            self.ask(self._heartbeat, self._answered)

    def _answered(self, answer: bytes) -> None:
        beaten = frames.decoded(share_frames.SHARE_GROUP_HEARTBEAT, answer)
        if beaten["error_code"] in TRANSIENT:
            self.fleet.later(RETRY_S, self.join)
            return
        _require(beaten["error_code"])
        if self.epoch != beaten["member_epoch"]:
            self.epoch = beaten["member_epoch"]
            self._heartbeat = share_frames.heartbeat(self.group, self._member_id, self.epoch, None)
            self.changed_at = time.perf_counter()
        if beaten["assignment"] is not None:
            given = beaten["assignment"]["topic_partitions"]
            self.partition_count = sum(len(each["partitions"]) for each in given)
            self.changed_at = time.perf_counter()
        self.has_share = self.partition_count > 0


class Fleet:
    """All members, their heartbeats spread evenly over the interval."""

    def __init__(self, address: tuple[str, int], heartbeat_interval_s: float) -> None:
        self.address = address
        self.members: list[Member] = []
        self.answer_count = 0
        """How many requests of all members were answered."""
        self._interval_s = heartbeat_interval_s
        self._by_descriptor: dict[int, Member] = {}
        self._epoll = select.epoll()
        self._beats: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        # Every client asks this first, and the first question makes the broker create the topic for groups.
        with Connection(*address) as connection:
            connection.request(frames.find_coordinator("any"))

    def add(self, members: Iterable[Member]) -> None:
        added = list(members)
        for position, member in enumerate(added):
            self.members.append(member)
            self._by_descriptor[member.socket.fileno()] = member
            self._epoll.register(member.socket.fileno(), select.EPOLLIN)
            self.later(self._interval_s * (1 + position / len(added)), self._beat_of(member))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._beats, (time.perf_counter() + delay_s, next(self._order), call))

    def run_until(self, holds: Callable[[], bool], deadline_s: float) -> float:
        """Serve all members until `holds()`; return the seconds that it took."""
        started = time.perf_counter()
        while not holds():
            if time.perf_counter() - started > deadline_s:
                raise TimeoutError(f"not within {deadline_s} s")
            self._turn()
        return time.perf_counter() - started

    @property
    def has_nothing_to_do(self) -> bool:
        """Every member has had two heartbeats that told it nothing new."""
        earliest = time.perf_counter() - 2.5 * self._interval_s
        return all(member.has_share and member.changed_at < earliest for member in self.members)

    def close(self) -> None:
        for member in self.members:
            member.socket.close()
        self._epoll.close()

    def _turn(self) -> None:
        now = time.perf_counter()
        while self._beats and self._beats[0][0] <= now:
            heapq.heappop(self._beats)[2]()
        pause_s = min(0.05, max(0.0, self._beats[0][0] - now)) if self._beats else 0.05
        for descriptor, _ in self._epoll.poll(pause_s, EVENTS_MAX):
            self._by_descriptor[descriptor].receive()

    def _beat_of(self, member: Member) -> Callable[[], None]:
        def beat() -> None:
            member.beat()
            self.later(self._interval_s, beat)

        return beat


def _flat(owned: dict[uuid.UUID, set[int]]) -> set[tuple[uuid.UUID, int]]:
    return {(topic, number) for topic, numbers in owned.items() for number in numbers}


def _require(error: str) -> None:
    if error != "none":
        raise RuntimeError(f"the broker refused a member with {error}")
