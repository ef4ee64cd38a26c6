"""A member of a share group. It is given records and says what has become of them: accepted, released,
rejected, not yet. It also does what members must not: it keeps records for too long, goes without a word, and
repeats what it does not know to have arrived."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import GROUP, Address, Client, ClientConnection, ErrorAnswer
from millrace.sim.clients.reading import visible_records
from millrace.sim.history import ShareAcked, ShareAcquired, ShareFetchLost
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import share_acknowledge, share_fetch
from millrace.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

HEARTBEAT_VERSION: Final = 1
SHARE_VERSION: Final = 2
HEARTBEAT_S: Final = 2.0
WAIT_MS: Final = 300
FETCH_BYTES: Final = 1 << 20
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""The types of acknowledgements."""
NO_ANSWER: Final = -1
_JOINING: Final = 0
_LEAVING: Final = -1
_OPENING: Final = 0
_CLOSING: Final = -1
_FENCED: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

Place = tuple[str, int]
Ack = tuple[int, int, int]
"""First and last offset, and the type."""
TermOf = Callable[[str, int, str], str]
"""The term of a partition's leader, by topic, partition and the host that is asked; empty if another
leads."""


@dataclass(slots=True)
class Given:
    """Records that a member has."""

    place: Place
    first: int
    last: int
    offsets: dict[int, None]
    """Those that are records: the others are gaps."""
    keep_until: float = 0.0
    """When the member says what has become of them."""


@dataclass(slots=True)
class _Session:
    connection: ClientConnection
    number: int
    epoch: int = _OPENING
    places: dict[Place, None] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Habits:
    """How often, of a hundred times, a member does other than to accept."""

    releases: int = 10
    rejects: int = 6
    mixes: int = 8
    renews: int = 8
    hangs: int = 5
    disconnects: int = 3
    closes: int = 3
    leaves: int = 2


HEALTHY: Final = Habits(0, 0, 0, 0, 0, 0, 0, 0)


class ShareMember:
    """One member of a share group; `is_stopping` makes it close its sessions in order and leave."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        term_of: TermOf,
        *,
        pause_s: float,
        lock_s: float,
        habits: Habits,
    ) -> None:
        self.client = client
        self.group = group
        self.topics = list(topics)
        self.habits = habits
        self.is_stopping = False
        self._term_of = term_of
        self._pause_s = pause_s
        self._lock_s = lock_s
        self._member_id = ""
        self._member_epoch = _JOINING
        self._heard_at = 0.0
        self._assigned: list[Place] = []
        self._names: dict[bytes, str] = {}
        self._sessions: dict[Address, _Session] = {}
        self._sessions_count = 0
        self._unanswered: dict[Place, list[Ack]] = {}

    @property
    def _chance(self) -> random.Random:
        return self.client.chance

    def _does(self, percent: int) -> bool:
        return self._chance.random() * 100 < percent

    async def run(self) -> None:
        client = self.client
        while not self.is_stopping:
            try:
                await self._heartbeat()
                for address, places in (await self._by_leader()).items():
                    await self._visit(address, places)
                if self._does(self.habits.leaves):
                    await self._leave()
            except (ConnectionFailed, ErrorAnswer):
                await client.pause()
            await client.next_turn(self._pause_s)
        for address in list(self._sessions):
            await self._close(address)
        await self._leave()

    # The group.

    async def _heartbeat(self) -> None:
        client = self.client
        if self._member_epoch > _JOINING and client.loop.time() - self._heard_at < HEARTBEAT_S:
            return
        if not self._member_id:
            self._member_id = f"{self._chance.getrandbits(64):016x}"
            self._member_epoch = _JOINING
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=self._member_epoch,
            subscribed_topic_names=self.topics if self._member_epoch == _JOINING else None,
        )
        answer: ShareGroupHeartbeatResponse = await client.ask_coordinator(
            GROUP, self.group, ApiKey.SHARE_GROUP_HEARTBEAT, HEARTBEAT_VERSION, request
        )
        if answer.error_code:
            client.forget_coordinator(GROUP, self.group)
            if answer.error_code in _FENCED:
                self._member_epoch = _JOINING
            raise ErrorAnswer("ShareGroupHeartbeat", answer.error_code)
        self._heard_at = client.loop.time()
        self._member_epoch = answer.member_epoch
        if answer.assignment is not None:
            await self._learn_names()
            self._assigned = [
                (self._names[each.topic_id], partition)
                for each in answer.assignment.topic_partitions
                for partition in each.partitions
                if each.topic_id in self._names
            ]

    async def _learn_names(self) -> None:
        if len(self._names) < len(self.topics):
            await self.client.refresh(*self.topics)
            self._names = {
                self.client.topics[name].topic_id: name for name in self.topics if name in self.client.topics
            }

    async def _leave(self) -> None:
        """Leave the group; the sessions stay as they are, as if the member had forgotten them."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self._member_id, member_epoch=_LEAVING
        )
        for address in list(self._sessions):
            self._drop(address)
        self._member_id = ""
        self._assigned = []
        self._unanswered.clear()
        try:
            await self.client.ask_coordinator(
                GROUP, self.group, ApiKey.SHARE_GROUP_HEARTBEAT, HEARTBEAT_VERSION, request
            )
        except (ConnectionFailed, ErrorAnswer):
            return

    async def _by_leader(self) -> dict[Address, list[Place]]:
        found: dict[Address, list[Place]] = {address: [] for address in self._sessions}
        for place in self._assigned:
            found.setdefault(await self.client.leader(*place), []).append(place)
        return found

    # Sessions.

    async def _visit(self, address: Address, places: list[Place]) -> None:
        """Fetch from one broker, and see to what this member has from it."""
        session = await self._session(address)
        wanted = dict.fromkeys(places)
        acks = self._decisions(session) if self._does(50) else {}
        await self._fetch(address, session, wanted, acks)
        if self._does(self.habits.disconnects):
            self._drop(address)
            return
        if self._does(self.habits.closes):
            await self._close(address)
            return
        repeated, self._unanswered = self._unanswered, {}
        for place, old in repeated.items():
            await self._acknowledge(address, session, {place: old})
        if self._does(70):
            renewed = {
                given.place: [(given.first, given.last, RENEW)]
                for given in session.given
                if self._does(self.habits.renews)
            }
            if renewed:
                await self._acknowledge(address, session, renewed, is_renewal=True)
            await self._acknowledge(address, session, self._decisions(session))

    async def _session(self, address: Address) -> _Session:
        connection = await self.client.connection(address)
        session = self._sessions.get(address)
        if session is None or session.connection is not connection:
            self._sessions_count += 1
            session = self._sessions[address] = _Session(connection, self._sessions_count)
        return session

    def _drop(self, address: Address) -> None:
        """Be gone without a word."""
        session = self._sessions.pop(address, None)
        if session is not None:
            session.connection.abort()

    async def _close(self, address: Address) -> None:
        """End a session in order; what is held goes back."""
        session = self._sessions.pop(address)
        if session.epoch == _OPENING or session.connection.is_lost:
            return
        session.epoch = _CLOSING
        try:
            await self._acknowledge(address, session, {}, closes=True)
        except (ConnectionFailed, ErrorAnswer):
            session.connection.abort()

    def _decisions(self, session: _Session) -> dict[Place, list[Ack]]:
        """What has become of the records that are due; each is spoken of once."""
        now, habits = self.client.loop.time(), self.habits
        decided: dict[Place, list[Ack]] = {}
        kept = []
        for given in session.given:
            if given.keep_until > now and habits is not HEALTHY:
                kept.append(given)
            elif not given.keep_until and self._does(habits.hangs):
                # Mostly for longer than its lock.
                given.keep_until = now + self._lock_s * self._chance.uniform(0.3, 2.0)
                kept.append(given)
            else:
                decided.setdefault(given.place, []).extend(self._acks_of(given))
        session.given = kept
        return {place: sorted(acks) for place, acks in decided.items()}

    def _acks_of(self, given: Given) -> list[Ack]:
        habits, chance = self.habits, self._chance
        draw = chance.random() * 100
        kinds = [ACCEPT]
        if draw < habits.releases:
            kinds = [RELEASE]
        elif draw < habits.releases + habits.rejects:
            kinds = [REJECT]
        elif draw < habits.releases + habits.rejects + habits.mixes:
            kinds = [ACCEPT, RELEASE, REJECT]
        return [
            (offset, offset, chance.choice(kinds) if offset in given.offsets else GAP)
            for offset in range(given.first, given.last + 1)
        ]

    # Requests.

    async def _fetch(
        self, address: Address, session: _Session, wanted: dict[Place, None], acks: dict[Place, list[Ack]]
    ) -> None:
        client = self.client
        asked_at = client.now()
        terms = self._terms(address, (*session.places, *wanted, *acks))
        request = self._fetch_request(session, wanted, acks)
        answered = session.connection.ask(ApiKey.SHARE_FETCH, SHARE_VERSION, request)
        try:
            answer: share_fetch.ShareFetchResponse = await session.connection.answer_of(answered)
        except ConnectionFailed:
            client.note(
                ShareFetchLost(
                    at=client.now(), group=self.group, member=self._member_id, places=tuple(session.places)
                )
            )
            self._not_answered(address, session, acks, asked_at)
            raise
        if answer.error_code:
            self._answered(address, session, acks, terms, asked_at, dict.fromkeys(acks, answer.error_code))
            self._drop(address)
            raise ErrorAnswer("ShareFetch", answer.error_code)
        session.epoch += 1
        parts = {
            (self._names[topic.topic_id], part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }
        # What was acknowledged may have been given again, by the same answer.
        codes = {place: part.acknowledge_error_code for place, part in parts.items()}
        self._answered(address, session, acks, terms, asked_at, codes)
        for place, part in parts.items():
            if part.error_code:
                client.forget_leader(place[0])
            self._take(address, session, place, part, asked_at, terms, answer.acquisition_lock_timeout_ms)

    def _fetch_request(
        self, session: _Session, wanted: dict[Place, None], acks: dict[Place, list[Ack]]
    ) -> share_fetch.ShareFetchRequest:
        if session.epoch == _OPENING:
            acks.clear()
        named = {place: acks.get(place, []) for place in (*wanted, *acks) if place not in session.places}
        named.update(acks)
        gone = [place for place in session.places if place not in wanted and place not in acks]
        session.places.update(dict.fromkeys(named))
        for place in gone:
            del session.places[place]
        ids = {name: topic_id for topic_id, name in self._names.items()}
        return share_fetch.ShareFetchRequest(
            group_id=self.group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=self._chance.choice((1, 5, 50)),
            batch_size=50,
            share_acquire_mode=self._chance.randint(0, 1),
            topics=[
                share_fetch.FetchTopic(
                    topic_id=ids[name],
                    partitions=[
                        share_fetch.FetchPartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                share_fetch.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                                )
                                for first, last, kind in said
                            ],
                        )
                    ],
                )
                for (name, partition), said in named.items()
            ],
            forgotten_topics_data=[
                share_fetch.ForgottenTopic(topic_id=ids[name], partitions=[partition])
                for name, partition in gone
            ],
        )

    def _take(
        self,
        address: Address,
        session: _Session,
        place: Place,
        part: share_fetch.PartitionData,
        asked_at: int,
        terms: dict[Place, str],
        lock_ms: int,
    ) -> None:
        runs = tuple(
            (each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records
        )
        found = visible_records(bytes(part.records or b""), 0, None, committed_only=False)
        offsets = [offset for offset, _ in found.records]
        for first, last, _ in runs:
            there = dict.fromkeys(offset for offset in offsets if first <= offset <= last)
            session.given.append(Given(place, first, last, there))
        self.client.note(
            ShareAcquired(
                at=self.client.now(),
                group=self.group,
                member=self._member_id,
                session=session.number,
                topic=place[0],
                partition=place[1],
                term=self._term(address, place, terms),
                asked_at=asked_at,
                lock_ms=lock_ms,
                runs=runs,
            )
        )

    async def _acknowledge(
        self,
        address: Address,
        session: _Session,
        acks: dict[Place, list[Ack]],
        *,
        is_renewal: bool = False,
        closes: bool = False,
    ) -> None:
        if not acks and not closes:
            return
        client = self.client
        asked_at, terms = client.now(), self._terms(address, acks)
        ids = {name: topic_id for topic_id, name in self._names.items()}
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            is_renew_ack=is_renewal,
            topics=[
                share_acknowledge.AcknowledgeTopic(
                    topic_id=ids[name],
                    partitions=[
                        share_acknowledge.AcknowledgePartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                share_acknowledge.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                                )
                                for first, last, kind in said
                            ],
                        )
                    ],
                )
                for (name, partition), said in acks.items()
            ],
        )
        answered = session.connection.ask(ApiKey.SHARE_ACKNOWLEDGE, SHARE_VERSION, request)
        try:
            answer: share_acknowledge.ShareAcknowledgeResponse = await session.connection.answer_of(answered)
        except ConnectionFailed:
            self._not_answered(address, session, acks, asked_at)
            raise
        if answer.error_code:
            self._answered(address, session, acks, terms, asked_at, dict.fromkeys(acks, answer.error_code))
            self._drop(address)
            raise ErrorAnswer("ShareAcknowledge", answer.error_code)
        session.epoch += 1
        codes = {
            (self._names[topic.topic_id], part.partition_index): part.error_code
            for topic in answer.responses
            for part in topic.partitions
        }
        self._answered(address, session, acks, terms, asked_at, codes)

    # What is written down.

    def _terms(self, address: Address, places: Iterable[Place]) -> dict[Place, str]:
        return {place: self._term_of(*place, address[0]) for place in places}

    def _term(self, address: Address, place: Place, terms: dict[Place, str]) -> str:
        """The term in which a request was served, if it cannot have been another."""
        now = self._term_of(*place, address[0])
        return now if terms.get(place) == now else ""

    def _answered(
        self,
        address: Address,
        session: _Session,
        acks: dict[Place, list[Ack]],
        terms: dict[Place, str],
        asked_at: int,
        codes: dict[Place, int],
    ) -> None:
        for place, said in acks.items():
            code = codes.get(place, NO_ANSWER)
            if code:
                self.client.forget_leader(place[0])
            self._note_acks(session, place, said, self._term(address, place, terms), asked_at, code)

    def _not_answered(
        self, address: Address, session: _Session, acks: dict[Place, list[Ack]], asked_at: int
    ) -> None:
        """The connection is lost, and with it the session. What was said on it is said again on the next."""
        session.connection.abort()
        self._sessions.pop(address, None)
        for place, said in acks.items():
            self._note_acks(session, place, said, "", asked_at, NO_ANSWER)
            self.client.forget_leader(place[0])
            self._unanswered.setdefault(place, said)

    def _note_acks(
        self, session: _Session, place: Place, said: list[Ack], term: str, asked_at: int, code: int
    ) -> None:
        self.client.note(
            ShareAcked(
                at=self.client.now(),
                group=self.group,
                member=self._member_id,
                session=session.number,
                topic=place[0],
                partition=place[1],
                term=term,
                asked_at=asked_at,
                acks=tuple(said),
                code=code,
            )
        )
