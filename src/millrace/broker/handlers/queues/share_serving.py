"""When a share fetch is answered, and with what: acknowledge first, then look at what could be given, wait if
that is too little, acquire, answer.

Nothing is acquired before it is certain that it leaves: a look finds batches and changes nothing, and only
when there is enough (`min_bytes`) and the client may have it (quotas) the records are acquired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from millrace.broker.handlers.fetch.record_answers import warm_all
from millrace.broker.handlers.queues.share_requests import (
    NO_ERROR,
    Acknowledgements,
    Refusal,
    by_topic,
    endpoints_of,
    leader_of,
    told,
)
from millrace.broker.network.outgoing import SENDFILE_MIN_BYTES, Chunk
from millrace.broker.queues.live_share import LOOKS_MAX, LiveShare, Look, Taken
from millrace.broker.queues.share_sessions import FINAL_EPOCH, ShareSession, ShareTarget
from millrace.core.errors import MillraceError
from millrace.log.errors import StorageError
from millrace.queues.share_partition.model import AcquireMode, ShareKey
from millrace.security.acls.binding import Operation
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import Slice
from millrace.wire.share_codec import PartitionResult, ShareFetchRequest, empty_fetch_frame, fetch_frame

if TYPE_CHECKING:
    from millrace.broker.network.requests import Request
    from millrace.core.ids import TopicId
    from millrace.log.partition.log_slice import LogSlice

SMALL_ANSWER_BYTES: Final = 128 * 1024
"""A consumer that is given so little at a time waits for each answer: see `network.lookout`."""
ANSWER_BYTES: Final = 40
PARTITION_BYTES: Final = 80
"""About what an answer has beside its records: once, and for each partition with what was acquired there."""


class _Place(NamedTuple):
    """One partition of the session in this request: its share partition, or why there is none."""

    target: ShareTarget
    share: LiveShare | None
    refusal: Refusal = NO_ERROR


class ShareFetch:
    """One ShareFetch, from the moment that its session is known."""

    __slots__ = (
        "_acks",
        "_answer",
        "_bytes_max",
        "_connection",
        "_deadline",
        "_found_nothing",
        "_is_last",
        "_is_waiting",
        "_is_woken",
        "_min_bytes",
        "_places",
        "_request",
        "_services",
        "_session",
        "_taken",
        "member_id",
    )

    def __init__(self, answer: Request, request: ShareFetchRequest, session: ShareSession) -> None:
        self._answer = answer
        self._connection = connection = answer.connection
        self._services = connection.services
        self._request = request
        self._session = session
        self.member_id = session.member_id
        self._acks = Acknowledgements()
        self._places: Sequence[_Place] = ()
        self._taken: dict[ShareTarget, Taken] = {}
        self._is_waiting = False
        self._is_woken = False
        self._found_nothing = False
        """Whether it would find nothing if it looked again: it would have been woken."""
        self._is_last = False
        """Whether it waits no more: its time has passed."""
        self._deadline: float | None = None
        bytes_max = min(request.max_bytes, self._services.settings.fetch_bytes_max)
        throttle = connection.throttle
        if throttle is not None and (quota := throttle.fetch_bytes_max) is not None:
            # More could never be had.
            bytes_max = min(bytes_max, max(int(quota), 1))
        self._bytes_max = bytes_max
        self._min_bytes = min(request.min_bytes, bytes_max)

    def begin(self) -> None:
        request, session = self._request, self._session
        acked = [asked for asked in request.partitions if asked.acks]
        if acked:
            self._acks.take(
                self._connection,
                self._services.shares,
                (session.group_id, session.member_id),
                acked,
                version=self._answer.route.version,
                is_renewal=request.is_renewal,
            )
        is_for_records = (
            request.session_epoch != FINAL_EPOCH
            and not request.is_renewal
            and request.max_records > 0
            and self._bytes_max > 0
        )
        if request.session_epoch != FINAL_EPOCH and not request.is_renewal:
            self._places = self._find_places()
        if is_for_records:
            self._attempt()
        else:
            self._finish()

    # Whose turn it is.

    def _find_places(self) -> list[_Place]:
        shares = self._services.shares
        targets = self._session.in_turn(self._request.session_epoch, shares.priority_of)
        return [self._place(target) for target in targets]

    def _place(self, target: ShareTarget) -> _Place:
        topic_id, index = target.key
        services, decisions = self._services, self._connection.decisions
        known = target.share
        if known is not None and known.is_served and not decisions.is_restricted:
            known.partition.stats.fetches += 1
            return _Place(target, known)
        topic = services.metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            return _Place(target, None, _refused(ErrorCode.UNKNOWN_TOPIC_ID))
        if decisions.is_restricted and not decisions.allows_on_topic(Operation.READ, topic.name):
            return _Place(target, None, _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        by_index = services.partitions.by_id.get(topic_id)
        partition = None if by_index is None else by_index.get(index)
        if partition is None:
            return _Place(target, None, _refused(services.absence("", topic_id, index)))
        if not partition.is_leader:
            return _Place(target, None, _refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        partition.stats.fetches += 1
        key = ShareKey(self._session.group_id, topic_id, index)
        target.share = services.shares.open(key, partition)
        return _Place(target, target.share)

    # Looking and acquiring.

    def _attempt(self) -> None:
        """Acquire what there is, if it is enough, and answer; else wait."""
        if self._answer.is_over:
            return
        if self._session.is_over:
            # Its member has opened another one, or closed it.
            self._finish()
            return
        for _ in range(LOOKS_MAX):
            looks = self._look()
            if looks is None:
                # A thread has to read something first.
                return
            size_bytes = sum([look.found.size_bytes for _, _, look in looks])
            self._found_nothing = not looks
            if size_bytes == 0 or (size_bytes < self._min_bytes and not self._is_last):
                break
            throttle = self._connection.throttle
            if throttle is not None and throttle.holds_back(
                size_bytes + ANSWER_BYTES + len(looks) * PARTITION_BYTES
            ):
                # It is to ask again later, and acquires nothing before.
                self._finish()
                return
            self._acquire(looks)
            if self._taken:
                break
        else:
            # All of it was aborted or too old. There may be more behind it, when others had their turn.
            self.wake()
        if self._taken or self._is_last or self._request.max_wait_ms <= 0 or self._has_news():
            self._finish()
        else:
            self._wait()

    def _look(self) -> list[tuple[ShareTarget, LiveShare, Look]] | None:
        looks: list[tuple[ShareTarget, LiveShare, Look]] = []
        records_left, bytes_left = self._request.max_records, self._bytes_max
        places_left = len(self._places)
        for target, share, _ in self._places:
            if share is None:
                places_left -= 1
                continue
            look: Look | None = None
            error = share.error
            if error is None and share.rules is not None and records_left > 0 and bytes_left > 0:
                try:
                    look = share.look(
                        self.member_id,
                        records_max=records_left,
                        bytes_max=max(bytes_left // places_left, 1),
                        waiting=len(share.waiters) - self._is_waiting,
                    )
                except MillraceError as failure:
                    error = failure
            if error is not None:
                self._fail(share, error)
            elif look is not None:
                if not look.is_complete:
                    if not looks:
                        self._complete_first(share, look)
                        return None
                elif look.found.batches:
                    looks.append((target, share, look))
                    records_left -= look.found.records_count
                    bytes_left -= look.found.size_bytes
            places_left -= 1
        return looks

    def _acquire(self, looks: Sequence[tuple[ShareTarget, LiveShare, Look]]) -> None:
        request = self._request
        records_left = request.max_records
        mode = AcquireMode.RECORD_LIMIT if request.acquire_mode == 1 else AcquireMode.BATCH_OPTIMIZED
        for target, share, look in looks:
            try:
                taken = share.acquire(
                    self.member_id,
                    look,
                    records_max=records_left,
                    batch_size=request.batch_size,
                    mode=mode,
                    waiting=len(share.waiters) - self._is_waiting,
                )
            except MillraceError as error:
                # Nothing was acquired: what the log says of aborted transactions could not be read.
                self._fail(share, error)
                continue
            if taken is not None:
                self._taken[target] = taken
                records_left -= taken.records_count
                if records_left <= 0:
                    break

    def _complete_first(self, share: LiveShare, look: Look) -> None:
        """Have a thread read what the loop must not wait for, and try again."""
        if not self._answer.has_place:
            self._connection.take_place(self._answer)
        self._stop_waiting()
        self._connection.start_task(self._complete_and_attempt(share, look))

    async def _complete_and_attempt(self, share: LiveShare, look: Look) -> None:
        try:
            await share.complete(look, self._services.log_directories.volume)
        except MillraceError as error:
            self._fail(share, error)
        self._attempt()
        # Meanwhile others may have waited behind it.
        self._pass_on()

    def _fail(self, share: LiveShare, error: MillraceError) -> None:
        """Tell the member that a share partition cannot be read now. It waits there no more: others in the
        line may have more luck."""
        share.remove_waiter(self)
        share.wake()
        self._places = [
            _Place(place.target, None, told(error)) if place.share is share else place
            for place in self._places
        ]

    def _has_news(self) -> bool:
        """Whether there is something to tell that waiting cannot mend: an error that the member does not know
        of, or nothing but errors."""
        failed = [place for place in self._places if place.share is None]
        return len(failed) == len(self._places) or any(
            place.refusal[0] != place.target.told_error for place in failed
        )

    # Waiting.

    def _wait(self) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        connection = self._connection
        if not self._answer.has_place:
            connection.take_place(self._answer)
        self._session.waiting = self
        for place in self._places:
            if place.share is not None:
                place.share.add_waiter(self)
        now, wait_ms = connection.loop.time(), self._request.max_wait_ms
        if self._deadline is None:
            self._deadline = now + wait_ms / 1000
        else:
            # It has waited before, until a thread had read something.
            wait_ms = max(round((self._deadline - now) * 1000), 0)
        self._services.deadlines.add(connection.loop, wait_ms, self)
        connection.on_close[self._stop_waiting] = None

    def wake(self) -> None:
        """There may be something to acquire."""
        self._found_nothing = False
        if not self._is_woken:
            self._is_woken = True
            self._services.wakeups.add(self._look_again)

    def _look_again(self) -> None:
        self._is_woken = False
        if self._is_waiting:
            self._attempt()
        self._pass_on()

    def _pass_on(self) -> None:
        for place in self._places:
            if place.share is not None:
                place.share.pass_on(self)

    def hurry(self) -> None:
        """Answer now: the member asks for something else, whose answer has to come behind this one."""
        if self._is_waiting:
            self._finish()

    def permissions_changed(self) -> None:
        """Tell the member now if it may not read any more what it waits for."""
        decisions = self._connection.decisions
        if not self._is_waiting:
            return
        if not decisions.allows_on_group(Operation.READ, self._session.group_id):
            self._stop_waiting()
            self._refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return
        places = [self._place(place.target) for place in self._places]
        if any(
            place.share is None and before.share is not None
            for place, before in zip(places, self._places, strict=True)
        ):
            self._stop_waiting()
            self._places = places
            self._finish()

    @property
    def is_over(self) -> bool:
        """Whether its deadline means nothing any more."""
        return not self._is_waiting

    def expire(self) -> None:
        """Its time has passed."""
        if self._is_waiting:
            self._is_last = True
            if self._found_nothing and not self._answer.is_over:
                self._finish()
            else:
                self._attempt()

    def _stop_waiting(self) -> None:
        if not self._is_waiting:
            return
        self._is_waiting = False
        if self._session.waiting is self:
            self._session.waiting = None
        for place in self._places:
            if place.share is not None:
                place.share.remove_waiter(self)
        self._connection.on_close.pop(self._stop_waiting, None)
        if self._is_woken:
            # Somebody counts on it to look.
            self._pass_on()

    # Answering.

    def _finish(self) -> None:
        """Answer as soon as the acknowledgements are stored."""
        self._stop_waiting()
        if self._acks.are_stored:
            self._send()
        else:
            if not self._answer.has_place:
                self._connection.take_place(self._answer)
            self._acks.when_stored(self._send)

    def _send(self) -> None:
        request, session, shares = self._request, self._session, self._services.shares
        lock_ms = shares.settings_of(session.group_id).lock_duration_ms
        if request.session_epoch == FINAL_EPOCH:
            shares.end_session(session, in_order=True)
        elif self._has_nothing_to_tell():
            self._leave([empty_fetch_frame(self._answer.correlation_id, lock_ms)])
            return
        results = self._results()
        connection = self._connection
        frame = fetch_frame(
            self._answer.correlation_id,
            by_topic(results),
            lock_ms=lock_ms,
            endpoints=endpoints_of(connection, results),
        )
        cold = [chunk for chunk in frame if not isinstance(chunk, bytes) and chunk.is_cold()]
        if cold:
            if not self._answer.has_place:
                connection.take_place(self._answer)
            connection.start_task(self._warm_and_leave(cast("list[LogSlice]", cold), frame))
        else:
            self._leave(frame)

    async def _warm_and_leave(self, cold: list[LogSlice], frame: list[bytes | Slice]) -> None:
        await warm_all(self._services.log_directories.volume, cold)
        self._leave(frame)

    def _has_nothing_to_tell(self) -> bool:
        if self._taken or self._acks.outcomes:
            return False
        return not [1 for target, share, _ in self._places if share is None or target.told_error]

    def _results(self) -> list[tuple[TopicId, PartitionResult]]:
        """What is told of each partition: what it has given, errors, and what became of acknowledgements."""
        services, session = self._services, self._session
        stats = self._answer.route.stats
        outcomes = dict(self._acks.outcomes)
        results: list[tuple[TopicId, PartitionResult]] = []
        for target, _, (code, message) in self._places:
            taken = self._taken.get(target)
            acked = outcomes.pop(target.key, None)
            target.told_error = code
            if not code and taken is None and acked is None:
                # Kafka names only those of which there is something to say, in first answers, too.
                continue
            ack_code, ack_message = acked or NO_ERROR
            result = PartitionResult(target.key[1], code, message, ack_code, ack_message)
            if code:
                stats.count_error(code)
                result = result._replace(leader=leader_of(services, target.key, code))
            elif taken is not None:
                session.served(target)
                result = result._replace(records=taken.records, acquired=taken.runs)
            results.append((target.key[0], result))
        for (topic_id, index), (code, message) in outcomes.items():
            result = PartitionResult(index, ack_error_code=code, ack_error_message=message)
            results.append((topic_id, result))
        for _, result in results:
            if result.ack_error_code:
                stats.count_error(result.ack_error_code)
        return results

    def _leave(self, frame: list[bytes | Slice]) -> None:
        connection, answer = self._connection, self._answer
        size_bytes = sum([len(chunk) if isinstance(chunk, bytes) else chunk.size_bytes for chunk in frame])
        for place in self._places:
            taken = self._taken.get(place.target)
            if taken is not None and place.share is not None:
                place.share.partition.stats.bytes_out += taken.size_bytes
        answer.route.stats.record(connection.ticks() - answer.started)
        if len(frame) == 1:
            connection.complete(answer, cast("bytes", frame[0]))
        elif size_bytes < SENDFILE_MIN_BYTES:
            try:
                copied = b"".join([chunk if isinstance(chunk, bytes) else chunk.read() for chunk in frame])
            except StorageError as error:
                connection.abort(str(error))
                return
            connection.complete(answer, copied)
        else:
            connection.complete(answer, cast("Sequence[Chunk]", frame))
        if self._taken and size_bytes <= SMALL_ANSWER_BYTES:
            self._services.lookout.expect_more(connection.loop)

    def _refuse(self, code: ErrorCode) -> None:
        refuse(self._answer, (code, code.message))


def refuse(answer: Request, refused: Refusal) -> None:
    """Answer a whole ShareFetch with an error."""
    code, message = refused
    answer.route.stats.count_error(code)
    frame = fetch_frame(answer.correlation_id, (), lock_ms=0, error_code=code, error_message=message)
    answer.complete(cast("bytes", frame[0]))


def _refused(code: ErrorCode) -> Refusal:
    return code, code.message
