"""Connections to the members of an etcd cluster: one is in use, the next is tried when it fails. Calls end in
time, log in where a password is set, and fail with the errors of the metadata.

The messages and stubs are aetcd's; its own client neither speaks TLS nor tells which changes belong together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from aetcd import rpc

from millrace.metadata.errors import StoreRefused, StoreUnavailable

_OPTIONS: Final = (
    # A snapshot of many partitions is larger than gRPC's 4 MB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Pings notice a member that vanished silently. etcd does not allow more than one in 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Connect soon after an outage; the default waits for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_TOKEN_REFUSED: Final = ("invalid auth token", "revision of auth store is old")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Where the members of etcd are, and how a broker shows them who it is."""

    endpoints: tuple[str, ...]
    """Each is http://host:port or https://host:port; a bare host:port means http."""
    prefix: str = "millrace"
    """What all keys begin with, so that several clusters can share one etcd."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate_authority: bytes | None = None
    """PEM, to check the members with; None trusts what gRPC trusts by itself."""
    certificate: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    request_timeout_ms: int = 2_000


class Stream(NamedTuple):
    """A stream of requests and answers, and the member that it is with."""

    call: Any
    member: int

    def cancel(self) -> None:
        self.call.cancel()


class EtcdCalls:
    """Calls to the members of etcd. Constructing it connects to nobody."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._channels: dict[int, Any] = {}
        self._current = 0
        self._token: str | None = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def ask(
        self, call_of: Callable[[Any], Callable[..., Any]], request: Any, *, is_repeatable: bool = True
    ) -> Any:
        """One answer to one request. With `is_repeatable`, this asks the other members too before it gives
        up."""
        attempts = len(self._settings.endpoints) if is_repeatable else 1
        for attempt in range(1, attempts + 1):
            try:
                return await self._ask_current(call_of, request)
            except StoreUnavailable:
                if attempt == attempts:
                    raise
        raise AssertionError("no endpoint")

    async def exchange(self, call_of: Callable[[Any], Callable[..., Any]], request: Any) -> Any:
        """The first answer of a stream to one request."""
        stream = await self.open_stream(call_of, timeout_s=self._timeout_s)
        try:
            await self.write(stream, request)
            return await self.read(stream)
        finally:
            stream.cancel()

    async def open_stream(
        self, call_of: Callable[[Any], Callable[..., Any]], *, timeout_s: float | None = None
    ) -> Stream:
        """A stream of requests and answers, to be read with `read` and ended with its `cancel`."""
        metadata = await self._metadata()
        member = self._current
        # A member that has lost the others ends the stream instead of falling silent.
        call = call_of(self._channel())(timeout=timeout_s, metadata=(*metadata, ("hasleader", "true")))
        return Stream(call, member)

    async def write(self, stream: Stream, request: Any) -> None:
        await self._of_stream(stream, stream.call.write(request))

    async def read(self, stream: Stream) -> Any:
        """The next answer; StoreUnavailable at the end of the stream."""
        answer = await self._of_stream(stream, stream.call.read())
        if answer is grpc.aio.EOF:
            raise self._ended(stream)
        return answer

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    async def _ask_current(self, call_of: Callable[[Any], Callable[..., Any]], request: Any) -> Any:
        for is_last in (False, True):
            metadata = await self._metadata()
            member = self._current
            try:
                return await self._guarded(
                    call_of(self._channel())(request, timeout=self._timeout_s, metadata=metadata)
                )
            except grpc.aio.AioRpcError as error:
                if not is_last and self._is_token_refused(error):
                    self._token = None
                    continue
                raise self._failure(error, member) from error
        raise AssertionError("two attempts")

    async def _of_stream(self, stream: Stream, awaitable: Any) -> Any:
        try:
            return await self._guarded(awaitable)
        except grpc.aio.AioRpcError as error:
            if self._is_token_refused(error):
                self._token = None
            raise self._failure(error, stream.member) from error
        except asyncio.InvalidStateError as error:
            # The stream had ended before it was written to.
            raise self._ended(stream) from error

    def _ended(self, stream: Stream) -> StoreUnavailable:
        self._leave(stream.member)
        return StoreUnavailable(f"etcd at {self._name(stream.member)} ended the stream")

    async def _guarded(self, awaitable: Any) -> Any:
        """Await a call. Closing a channel cancels its calls from within, which must not cancel the caller."""
        try:
            return await awaitable
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and (task is None or not task.cancelling()):
                raise StoreUnavailable("the connection to etcd is closed") from None
            raise

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        settings = self._settings
        if settings.username is None:
            return ()
        if self._token is None:
            request = rpc.AuthenticateRequest(name=settings.username, password=settings.password or "")
            member = self._current
            try:
                answer = await self._guarded(
                    rpc.AuthStub(self._channel()).Authenticate(request, timeout=self._timeout_s)
                )
            except grpc.aio.AioRpcError as error:
                raise self._failure(error, member) from error
            self._token = answer.token
        return (("token", self._token),)

    def _failure(self, error: Any, member: int) -> StoreRefused:
        """What a failed call means to the metadata; the next call goes to the next member."""
        if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE):
            self._leave(member)
        reason = error.details() or error.code().name
        return StoreRefused(f"etcd at {self._name(member)}: {reason}", error.code().name)

    def _is_token_refused(self, error: Any) -> bool:
        if self._settings.username is None:
            return False
        details = error.details() or ""
        return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
            part in details for part in _TOKEN_REFUSED
        )

    def _leave(self, member: int) -> None:
        """Go on with the next member, unless another failed call has done so: many are under way when a
        member is lost, and together they would go round to it again."""
        if self._current == member:
            self._current = (member + 1) % len(self._settings.endpoints)

    def _name(self, member: int) -> str:
        return self._settings.endpoints[member]

    def _channel(self) -> Any:
        if self._is_closed:
            raise StoreUnavailable("the connection to etcd is closed")
        channel = self._channels.get(self._current)
        if channel is None:
            channel = self._channels[self._current] = self._connect(self._name(self._current))
        return channel

    def _connect(self, endpoint: str) -> Any:
        scheme, separator, target = endpoint.rpartition("://")
        if separator and scheme == "https":
            settings = self._settings
            credentials = grpc.ssl_channel_credentials(
                root_certificates=settings.certificate_authority,
                private_key=settings.private_key,
                certificate_chain=settings.certificate,
            )
            return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
