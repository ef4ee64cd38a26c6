"""One client's connection: frames in, responses out in the order of the requests.

Reading. All connections share one receive buffer, because a read and the handling of its frames are one
synchronous step. Only what is left of an unfinished frame moves into a buffer of the connection's own,
which grows with the bytes that really arrive, never with the length that a frame claims.

Order. Requests are handled one after the other. A handler that answers at once costs nothing extra; one
that must wait for replicas or records takes a place (`requests.py`), and later responses queue behind it (as
far as there is memory for them: `memory.py`); one that is a coroutine holds up the requests behind it, as
Kafka does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from millrace.broker.network.client_names import expect_any_name, meet
from millrace.broker.network.context import Endpoint, RequestContext
from millrace.broker.network.memory import AT_ONCE_MIN_BYTES, OWN_BUFFER_KEEP_BYTES, answer_bytes, own_rooms
from millrace.broker.network.outgoing import Chunk, Outgoing, OutgoingFailed
from millrace.broker.network.refusals import api_refusal, failure, frame_refusal
from millrace.broker.network.requests import NO_BYTES, SLOTS_MAX, SLOTS_RESUME, Request, Slot
from millrace.core.override import override
from millrace.security.acls.decisions import Decisions
from millrace.security.principals import NOBODY, Identity
from millrace.wire.framing import LENGTH, REQUEST_HEAD, REQUEST_HEAD_SIZE, response_frame, skip_tags

if TYPE_CHECKING:
    from millrace.broker.handlers.produce.refused_batches import RefusedBatches
    from millrace.broker.network.dispatch import Route
    from millrace.broker.network.login import ListenerLogins
    from millrace.broker.network.server import Server
    from millrace.broker.network.throttling import ClientThrottle
    from millrace.wire.framing import HeadReader

log = logging.getLogger(__name__)

_read_length: Final = LENGTH.unpack_from


class Connection(asyncio.BufferedProtocol):
    """Reading, ordering and writing for one socket; what requests mean is the handlers' business."""

    # More than the dictionaries of a class share (30): as slots they are found at once.
    __slots__ = (
        "_answers",
        "_filled",
        "_frame_bytes_max",
        "_handling",
        "_held_bytes",
        "_holds",
        "_is_full",
        "_own",
        "_reading_paused",
        "_routes",
        "_server",
        "_shared",
        "_slots",
        "_spare_request",
        "_throttling",
        "_transport",
        "_waits_for_memory",
        "_wakeups",
        "client_id",
        "congested_sent",
        "congested_since",
        "decisions",
        "endpoint",
        "fetched_at",
        "frame_seen",
        "frame_since",
        "frames_count",
        "head_bytes",
        "idle_since",
        "is_closing",
        "is_last_frame",
        "known_name",
        "login",
        "loop",
        "on_close",
        "out",
        "read_head",
        "recognised",
        "refused_batches",
        "services",
        "shape_size",
        "start_task",
        "throttle",
        "ticks",
        "was_active",
    )

    def __init__(self, server: Server, listener: str, logins: ListenerLogins | None = None) -> None:
        self._server = server
        self._routes = server.dispatcher.routes
        self.services = server.services
        self._wakeups = server.services.wakeups
        self._throttling = server.services.throttling
        self.loop = server.loop
        self.ticks = server.ticks
        self.start_task = server.start_task
        self._shared = server.receive_buffer
        self._frame_bytes_max = server.frame_bytes_max
        self._own: memoryview | None = None
        self._filled = 0
        self._slots: list[Slot] = []
        self._spare_request: Request | None = None
        """Of a request that was answered at once: it serves the next one of the same kind."""
        self._answers: list[bytes] = []
        self._handling = False
        self._holds = 0
        self.is_closing = False
        self._held_bytes = 0
        self._is_full = False
        """Whether so many answers wait for earlier ones that no further request may be handled."""
        self._reading_paused = False
        self._waits_for_memory = False
        self._transport: asyncio.Transport | None = None
        self.endpoint = Endpoint("", 0, "", 0, listener)
        self.decisions = Decisions(server.services.access, NOBODY, "")
        """Who is at the other end, and what they may do."""
        self.login = None if logins is None else logins.begin(self, server)
        """Its login while that is under way, and its session if that has an end."""
        self.on_close: dict[Callable[[], None], None] = {}
        """Called when the connection ends, for handlers that wait on its behalf."""
        self.client_id: str | None = None
        """What the client calls itself, by its last request."""
        self.throttle: ClientThrottle | None = None
        """What its client is charged with; None if nothing limits it."""
        expect_any_name(self)
        self.recognised = server.services.recognition.enter(None)
        """What it may ask again: where there are permissions, that of those who may do the same."""
        self.shape_size = 0
        """How many bytes at the beginning of its last produce request tell where the records go."""
        self.refused_batches: RefusedBatches | None = None
        """What was refused of idempotent producers, while they may have sent more behind it."""
        self.fetched_at: float | None = None
        """When it last asked for records, in ticks."""
        self.was_active = True
        self.idle_since: float = 0.0
        self.frames_count = 0
        self.is_last_frame = False
        """Whether nothing else was received behind the request that is being handled."""
        self.frame_since: float | None = None
        """When the sweep first saw the present unfinished frame, which is number `frame_seen`."""
        self.frame_seen = 0
        self.congested_since: float | None = None
        self.congested_sent = 0

    # How requests of the client that is known begin: see `client_names.py`.
    known_name: bytes | None
    read_head: HeadReader
    head_bytes: int

    # The transport's side.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self._transport = stream = cast("asyncio.Transport", transport)
        local = transport.get_extra_info("sockname") or ("", 0)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.endpoint = Endpoint(local[0], local[1], peer[0], peer[1], self.endpoint.listener)
        self.decisions = Decisions(self.services.access, NOBODY, self.endpoint.peer_host)
        self.authenticated_as(NOBODY)
        self.out = Outgoing(stream)
        self.out.begin(is_local=local[0] == peer[0])
        if not self._server.admit(self):
            self.is_closing = True
            self.out.close()
            stream.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        self.out.close()
        for slot in self._slots:
            slot.discard()
        self._slots.clear()
        if self._held_bytes:
            self._release(self._held_bytes)
        self._throttling.leave(self)
        self.recognised.forget(self)
        self.services.recognition.leave(self.recognised)
        callbacks, self.on_close = self.on_close, {}
        for callback in callbacks:
            callback()
        self._drop_own_buffer()
        self._server.forget(self)

    def authenticated_as(self, identity: Identity) -> None:
        """The client has shown who it is. What it was allowed as somebody else counts no more."""
        self.decisions.authenticated_as(identity)
        self._throttling.leave(self)
        self.recognised.forget(self)
        self.services.recognition.leave(self.recognised)
        self.recognised = self.services.recognition.enter(self.decisions.asker)

    @override
    def pause_writing(self) -> None:
        self.out.pause()

    @override
    def resume_writing(self) -> None:
        if self.is_closing:
            return
        try:
            self.out.resume()
        except OutgoingFailed as failure:
            self.abort(str(failure))
            return
        if not self.out.is_congested:
            self.congested_since = None
            self._continue()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        own = self._own
        return self._shared if own is None else own[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.was_active = True
        own = self._own
        if own is None:
            consumed = self._handle_frames(self._shared, nbytes)
            if consumed < nbytes and not self.is_closing:
                self._keep(self._shared, consumed, nbytes)
            return
        self._filled += nbytes
        self._handle_own()

    # Frames.

    def _handle_own(self) -> None:
        own = self._own
        assert own is not None
        filled = self._filled
        consumed = self._handle_frames(own, filled)
        if self.is_closing:
            return
        if consumed == filled:
            self._filled = 0
            if len(own) <= OWN_BUFFER_KEEP_BYTES:
                self._drop_own_buffer()
        else:
            self._keep(own, consumed, filled)

    def _handle_frames(self, buffer: memoryview, end: int) -> int:
        """Handle the whole frames of `buffer[:end]`; returns how many bytes of it are done with."""
        if self._server.before_requests is not None:
            self._server.before_requests()
        position = 0
        self._handling = True
        wakeups = self._wakeups
        is_within_another = wakeups.begin_read()
        try:
            if self.login is not None:
                position, is_for_handlers = self.login.take_frames(buffer, end)
                if not is_for_handlers:
                    return position
            while end - position >= 4 and not self._holds and not self.is_closing:
                (size,) = _read_length(buffer, position)
                start = position + 4
                stop = start + size
                if stop > end or not self.head_bytes <= size <= self._frame_bytes_max:
                    if REQUEST_HEAD_SIZE <= size < self.head_bytes:
                        expect_any_name(self)
                        continue
                    reason = frame_refusal(self._server, buffer[position:end], size)
                    if reason is not None:
                        self.abort(reason)
                    break
                position = stop
                self.frames_count += 1
                self.is_last_frame = stop == end
                number, correlation_id, name = self.read_head(buffer, start)
                if name != self.known_name and not meet(self, buffer, start, stop):
                    break
                started = self.ticks()
                route = self._routes.get(number) or self._first_route(buffer, start)
                if route is None:
                    if self._is_full or len(self._slots) >= SLOTS_MAX:
                        self._pause_reading()
                        break
                    continue
                body = start + self.head_bytes
                if route.flexible_request:
                    body = body + 1 if body < stop and buffer[body] == 0 else skip_tags(buffer, body, stop)
                # One object serves many requests, as long as each is answered before the next.
                request = self._spare_request
                if request is None or request.route is not route:
                    request = self._spare_request = route.request_type(self, route)
                    self.decisions.request = route.name
                request.buffer, request.body, request.stop = buffer, body, stop
                request.correlation_id, request.started = correlation_id, started
                if route.direct:
                    route.handle(request)
                elif route.quick is None or not route.quick(request):
                    # A general handler takes and gives messages.
                    context = RequestContext(
                        *(route.version, self.client_id, self.endpoint),
                        *(self.services, self.decisions, self.throttle),
                    )
                    self.answer(request, route.handle(context, route.decode(buffer[:stop], body)))
                if (throttle := self.throttle) is not None and throttle.is_timed:
                    throttle.left_s = left_s = throttle.left_s - (self.ticks() - started)
                    if left_s < 0:
                        throttle.is_due = True
                if self.out.is_congested or self._is_full or len(self._slots) >= SLOTS_MAX:
                    self._pause_reading()
                    break
            return position
        except Exception as error:  # noqa: BLE001 - the edge of a request: what is not expected is logged there
            self.abort(failure(self._server, error, self.endpoint.peer_host))
            return end
        finally:
            self._handling = False
            if wakeups.end_read(is_within_another):
                wakeups.let_leave(self, is_within_another)
            elif self._answers:
                self.send_answers()

    def _first_route(self, buffer: memoryview, start: int) -> Route | None:
        """The route of a request whose kind was not asked for before; None if there is none, and that is
        answered."""
        key, version, correlation_id, _ = REQUEST_HEAD.unpack_from(buffer, start)
        route = self._server.dispatcher.find(key, version)
        if route is None:
            answer = self._server.answer_unserved(key, version, correlation_id)
            if answer is None:
                self.abort(api_refusal(self._server, key, version))
            else:
                self.complete(Slot(self), answer)
        return route

    def answer(self, request: Request, response: Any) -> None:
        """Answer the request that is being handled, now, or when the response is there to be awaited."""
        if type(response) is not bytes and isinstance(response, Awaitable):
            self.take_place(request)
            self.run_ordered(self._answer_when_there(request, response))
            return
        route = request.route
        if self.throttle is not None:
            self.throttle.owe(getattr(response, "throttle_time_ms", 0))
        # A handler may keep the bytes of an answer that is asked for often.
        body = response if isinstance(response, bytes) else route.encode(response)
        route.stats.record(self.ticks() - request.started)
        self.complete(request, response_frame(request.correlation_id, body, flexible=route.flexible_response))
        if len(body) >= AT_ONCE_MIN_BYTES:
            # Thousands of small requests fit into what was received: their answers must not pile up.
            self.send_answers()

    async def _answer_when_there(self, request: Request, response: Awaitable[Any]) -> None:
        self.answer(request, await response)

    def run_ordered(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for the request that is being handled; those behind it wait until it ends."""
        self.hold()
        self._spare_request = None
        self.start_task(self._run_ordered(work if self.throttle is None else self.throttle.timed(work)))

    def hold(self) -> None:
        """Handle and read nothing, for one reason more, until `let_go` is called for each."""
        self._holds += 1
        self._pause_reading()

    def stay_paused(self) -> None:
        """Tell a transport again that nothing is to be read, if that still holds."""
        if self._reading_paused:
            self._reading_paused = False
            self._pause_reading()

    def let_go(self) -> None:
        """One reason less to wait: go on, if there is no other."""
        self._holds -= 1
        self._continue()

    async def _run_ordered(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception:
            # A handler answers expected failures by itself: what comes here is a bug, and no answer can be
            # trusted.
            log.exception("a handler failed", extra={"peer": self.endpoint.peer_host})
            self._server.count_refused("failed")
            self.abort("internal error")
            return
        # Nothing was read that would send the answers on its way out.
        self.send_answers()
        self.let_go()

    def _continue(self) -> None:
        """Handle the frames that had to wait, then read on."""
        if self.is_closing or self._holds or self._handling or self._is_full:
            return
        if self._own is not None and self._filled:
            self._handle_own()
        if (
            not self.is_held
            and not self._waits_for_memory
            and not self._is_full
            and len(self._slots) < SLOTS_MAX
            and not self.out.is_congested
        ):
            self._resume_reading()

    # Answers.

    def take_place(self, slot: Slot) -> None:
        """Let the request that is being handled be answered later: answers to others queue behind it."""
        slot.has_place = True
        slot.buffer = NO_BYTES
        self._slots.append(slot)
        self._spare_request = None

    def complete(self, slot: Slot, response: bytes | Sequence[Chunk]) -> None:
        """Answer a request with a whole frame: in the place that it took, or now, while it is being handled.
        The frame leaves when all earlier ones have left."""
        slots = self._slots
        if (throttle := self.throttle) is not None and (slot.is_charged or throttle.is_due):
            response = throttle.charge(slot, response)
        if not slot.has_place:
            if not slots:
                if isinstance(response, bytes):
                    self._answers.append(response)
                else:
                    self.send_answers()
                    self.out.write_chunks(response)
                return
            self.take_place(slot)
        if slot.is_over:
            return
        slot.is_over = True
        slot.response = response
        if self.is_closing:
            return
        if (first := slots[0].response) is None:
            if (size_bytes := answer_bytes(response)) > 0:
                self._held_bytes += size_bytes
                self._is_full = self._server.request_memory.hold(size_bytes, self._held_bytes)
            return
        leaves_later = self._handling or self._wakeups.holds_back(self)
        if len(slots) > 1 or self._held_bytes or not isinstance(first, bytes):
            self._collect(response)
        else:
            # The commonest case: nothing stands before it, nothing behind it.
            slots.pop().response = None
            if not (leaves_later or self._answers or self._reading_paused):
                try:
                    self.out.write(first)
                except OutgoingFailed as failure:
                    self.abort(str(failure))
                return
            self._answers.append(first)
        if not leaves_later:
            self.send_collected()

    def _collect(self, completed: bytes | Sequence[Chunk]) -> None:
        """Take the answers that nothing stands before out of their places. `completed` is the first of them,
        which did not wait for another."""
        slots = self._slots
        released = -answer_bytes(completed) if self._held_bytes else 0
        try:
            while slots and (response := slots[0].response) is not None:
                # Who waited may live on, and is not to keep the bytes, nor files open.
                slots.pop(0).response = None
                if self._held_bytes:
                    released += answer_bytes(response)
                if isinstance(response, bytes):
                    self._answers.append(response)
                else:
                    self.send_answers()
                    self.out.write_chunks(response)
        except OutgoingFailed as failure:
            self.abort(str(failure))
            return
        if released:
            self._release(released)

    def send_collected(self) -> None:
        """Send the answers that were made on this connection's behalf, and read on if it waited for them."""
        self.send_answers()
        if self._reading_paused and not self._is_full and len(self._slots) <= SLOTS_RESUME:
            self._continue()

    def _release(self, size_bytes: int) -> None:
        """Answers that were held have left."""
        self._held_bytes -= size_bytes
        self._is_full = self._server.request_memory.let_go(size_bytes, self._held_bytes)

    def send_answers(self) -> None:
        """Send the answers that are ready, in one piece."""
        answers = self._answers
        if not answers or self.is_closing:
            return
        data = answers[0] if len(answers) == 1 else b"".join(answers)
        answers.clear()
        try:
            self.out.write(data)
        except OutgoingFailed as failure:
            self.abort(str(failure))

    # The buffer of an unfinished frame.

    def _keep(self, buffer: memoryview, start: int, end: int) -> None:
        """Move what is left over to the front of the connection's own buffer and make room for more."""
        left = end - start
        needed, room = own_rooms(left, _read_length(buffer, start)[0] if left >= 4 else None)
        own = self._own
        if own is not None and len(own) >= needed and (len(own) > left or self._holds):
            own[:left] = buffer[start:end]
        else:
            fresh = memoryview(bytearray(room))
            fresh[:left] = buffer[start:end]
            self._drop_own_buffer()
            self._own = fresh
            if not self._server.request_memory.take(room):
                self._waits_for_memory = True
                self._pause_reading()
                self._server.request_memory.wait(room, self._memory_granted)
        self._filled = left

    def _memory_granted(self) -> None:
        self._waits_for_memory = False
        self._server.loop.call_soon(self._continue)

    def _drop_own_buffer(self) -> None:
        own, self._own = self._own, None
        self._filled = 0
        # The spare request may still refer to that buffer.
        self._spare_request = None
        if own is None:
            return
        if self._waits_for_memory:
            self._waits_for_memory = False
            self._server.request_memory.stop_waiting(self._memory_granted)
        else:
            self._server.request_memory.give_back(len(own))

    # Flow and end.

    @property
    def has_unfinished_frame(self) -> bool:
        # While reading is paused, it is the broker that waits.
        return self._filled > 0 and not self._holds and not self._reading_paused

    @property
    def is_held(self) -> bool:
        """Whether no further frame may be handled now."""
        return self.is_closing or self._holds > 0

    @property
    def is_waiting(self) -> bool:
        """Whether a request of this connection is still to be answered: such a connection is not idle."""
        return bool(self._holds or self._slots)

    def release_idle_buffer(self) -> None:
        """Give back the buffer of a connection that sends nothing at present."""
        if self._own is not None and self._filled == 0:
            self._drop_own_buffer()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None and not self.is_closing:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def abort(self, reason: str) -> None:
        """End the connection now, and say why in the log."""
        if self.is_closing:
            return
        self.is_closing = True
        log.info(
            "connection closed",
            extra={"peer": f"{self.endpoint.peer_host}:{self.endpoint.peer_port}", "reason": reason},
        )
        self._answers.clear()
        self.out.close()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection after what was written has left."""
        if self.is_closing:
            return
        self.send_answers()
        self.is_closing = True
        self.out.close()
        if self._transport is not None:
            self._transport.close()
