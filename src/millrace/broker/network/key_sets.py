"""Fetches the keys that verify tokens (JWKS), by https or from a file, and again: every hour, and
when a token names a key that nobody knows.

The URL is the operator's, and what the answer says is not: every redirect and every address is judged before
anything is connected to (fault S18), and answers have a size and a time.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from millrace.core.override import override
from millrace.security.errors import InvalidKeySet, RefusedUrl
from millrace.security.jwt.keys import KEY_SET_BYTES_MAX, KeyRing, VerificationKey, parse_key_set
from millrace.security.jwt.urls import check_address, check_redirect, check_url

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
_REDIRECTS: Final = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySetPlace:
    """Where a key set is, and how often it is fetched."""

    url: str
    allowed_urls: tuple[str, ...]
    refresh_s: float
    retry_s: float
    retry_s_max: float


class KeySetFeed:
    """Keeps the keys of one provider fresh."""

    def __init__(self, place: KeySetPlace, lane: Executor | None) -> None:
        self._place = place
        self._lane = lane
        self._is_wanted = asyncio.Event()
        self.keys = KeyRing(self._is_wanted.set)
        self.failures_count = 0

    async def load(self) -> None:
        """Fetch the keys now. Raises OSError, InvalidKeySet and RefusedUrl; the keys of before stay."""
        loop = asyncio.get_running_loop()
        keys = await loop.run_in_executor(self._lane, _load, self._place)
        self.keys.replace(keys)

    async def run(self) -> None:
        """Fetch the keys again and again. What fails is tried again soon, with longer and longer waits."""
        wait_s, failed_s = 0.0, self._place.retry_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass
            self._is_wanted.clear()
            try:
                await self.load()
            except (OSError, InvalidKeySet, RefusedUrl) as error:
                self.failures_count += 1
                log.warning("keys for tokens could not be fetched", extra={"reason": str(error)})
                wait_s, failed_s = failed_s, min(2 * failed_s, self._place.retry_s_max)
            else:
                wait_s, failed_s = self._place.refresh_s, self._place.retry_s


def _load(place: KeySetPlace) -> tuple[VerificationKey, ...]:
    return parse_key_set(fetch_key_set(place.url, place.allowed_urls))


def fetch_key_set(
    url: str, allowed: tuple[str, ...], *, context: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> bytes:
    """The bytes of a key set. Blocks: for a thread. Raises OSError, InvalidKeySet and RefusedUrl."""
    parts = check_url(url, allowed, are_files_allowed=True)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return file.read(KEY_SET_BYTES_MAX + 1)
    followed = 0
    while True:
        status, location, content = _get(url, context())
        if status == http.client.OK:
            return content
        if status not in _REDIRECTS or location is None:
            raise InvalidKeySet(f"the provider answers with status {status}")
        url = check_redirect(url, location, allowed, followed=followed)
        followed += 1


def _get(url: str, context: ssl.SSLContext) -> tuple[int, str | None, bytes]:
    parts = urlsplit(url)
    assert parts.hostname is not None, "judged before"
    connection = _Pinned(parts.hostname, parts.port or 443, context)
    try:
        target = parts.path or "/"
        connection.request(
            "GET",
            f"{target}?{parts.query}" if parts.query else target,
            headers={"Accept": "application/json", "User-Agent": "millrace"},
        )
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location"), answer.read(KEY_SET_BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise InvalidKeySet(f"the provider does not speak HTTP: {error!r:.100}") from None
    finally:
        connection.close()


class _Pinned(http.client.HTTPSConnection):
    """Connects to an address that was judged: a name that is resolved again might lead elsewhere."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S, context=context)
        self._judged = context

    @override
    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for _, _, _, _, address in found:
            check_address(str(address[0]))
        host, port = found[0][4][:2]
        plain = socket.create_connection((str(host), int(port)), TIMEOUT_S)  # noqa: TID251 - in a thread
        try:
            self.sock = self._judged.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
