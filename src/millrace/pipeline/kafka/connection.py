"""One blocking connection to a broker: frames out, frames in. Knows no cluster and never tries again."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final

from millrace.pipeline.errors import ConnectionFailed, PipelineError
from millrace.wire import schema

_HEAD: Final = struct.Struct(">ihhih")
"""Length of the frame, api key, version, correlation id, length of the client id."""
_INT32: Final = struct.Struct(">i")
_LENGTH_AND_ID: Final = struct.Struct(">ii")

RESPONSE_BYTES_MAX: Final = 1 << 30
"""More than any fetch asks for; the greeting of a web server, read as a length, is more than this."""


class Connection:
    """Requests may be pipelined; answers come in the order of the requests. Not for several threads."""

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._buffer = bytearray(1 << 16)
        try:
            plain = socket.create_connection((host, port), timeout=timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else _secured(plain, host, tls)
        except ssl.SSLCertVerificationError as error:
            # Another try would find the same certificate.
            raise PipelineError(
                f"the certificate of {self.address} is not trusted: {error.verify_message}; "
                "ssl.ca.location names the authorities that are"
            ) from error
        except ssl.SSLError as error:
            raise ConnectionFailed(f"TLS with {self.address} failed: {error.reason or error}") from error
        except OSError as error:
            raise ConnectionFailed(
                f"no broker answers at {self.address}: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        self._socket.close()

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Send one request and return its correlation id, for `receive`."""
        self._correlation_id += 1
        tags = b"\0" if schema.request_header_version(api_key, version) >= 2 else b""
        size = _HEAD.size - 4 + len(self._client_id) + len(tags) + len(body)
        head = _HEAD.pack(size, api_key, version, self._correlation_id, len(self._client_id))
        try:
            self._socket.sendall(b"".join((head, self._client_id, tags, body)))
        except OSError as error:
            raise self._lost(error) from error
        return self._correlation_id

    def receive(self, correlation_id: int, api_key: int, version: int) -> memoryview:
        """The body of the next answer, which must be the one asked for.

        The bytes are valid until the next call: large answers share one buffer that is used again and again.
        """
        head = bytearray(8)
        self._fill(memoryview(head))
        size, found_id = _LENGTH_AND_ID.unpack(head)
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise ConnectionFailed(f"{self.address} answers, but not with the Kafka protocol")
        if found_id != correlation_id:
            raise ConnectionFailed(f"{self.address} answered request {found_id} instead of {correlation_id}")
        size -= 4
        if size > len(self._buffer):
            # A new one: the old buffer may still be looked at, and then it cannot grow.
            self._buffer = bytearray(size)
        body = memoryview(self._buffer)[:size]
        self._fill(body)
        # Brokers send no tagged fields in headers; one byte says so.
        return body[1:] if schema.response_header_version(api_key, version) >= 1 else body

    def _fill(self, target: memoryview) -> None:
        position = 0
        end = len(target)
        try:
            while position < end:
                count = self._socket.recv_into(target[position:])
                if count == 0:
                    raise ConnectionFailed(
                        f"{self.address} closed the connection; if its listener uses TLS or SASL, "
                        "set security.protocol"
                    )
                position += count
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> ConnectionFailed:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return ConnectionFailed(f"the connection to {self.address} failed: {reason}")


def _secured(plain: socket.socket, host: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
