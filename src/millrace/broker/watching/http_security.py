"""The token and the certificate of the HTTP port, from files that may change while the broker runs.

Both are read in a thread. What cannot be used is logged, and what counted before goes on counting.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from millrace.broker.watching.http_guard import BearerGuard
from millrace.metadata.errors import InvalidConfig

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 10.0
TOKEN_LENGTH_MIN: Final = 16
"""A shorter one could be guessed, as often as anybody may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSecurity:
    """How the port is to be secured. Nothing given: everybody who reaches it may read it."""

    key_store: str | None = None
    """A PEM file with the private key and the chain of certificates."""
    key_password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    are_probes_open: bool = True


class HttpCredentials:
    """What counts at this moment. Made by `load`; `follow` looks at the files again and again."""

    def __init__(self, settings: HttpSecurity, tls: ssl.SSLContext | None, guard: BearerGuard | None) -> None:
        self._settings = settings
        self._tls = tls
        self.guard = guard
        self._seen = _stamps(settings)
        self.listening = None if tls is None else _changing(self)
        """The context to listen with; None without TLS. Every handshake uses the newest certificate."""

    @property
    def current(self) -> ssl.SSLContext | None:
        return self._tls

    async def follow(self) -> None:
        """A loop of the background."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            await self.look()

    async def look(self) -> None:
        """Take what is in the files now, if they have changed."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, _stamps, self._settings)
        if found == self._seen:
            return
        self._seen = found
        try:
            tls, token = await loop.run_in_executor(None, _read, self._settings)
        except InvalidConfig as error:
            log.error("the HTTP port goes on with what it had: %s", error)
            return
        self._tls = tls
        if self.guard is not None and token is not None:
            self.guard.replace(token)
        log.info("the HTTP port has a new certificate or token")


async def load(settings: HttpSecurity) -> HttpCredentials:
    """Raises InvalidConfig for files that cannot be used."""
    tls, token = await asyncio.get_running_loop().run_in_executor(None, _read, settings)
    return HttpCredentials(settings, tls, None if token is None else BearerGuard(token))


def _read(settings: HttpSecurity) -> tuple[ssl.SSLContext | None, str | None]:
    return _context(settings), _token(settings)


def _context(settings: HttpSecurity) -> ssl.SSLContext | None:
    if settings.key_store is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(settings.key_store, password=settings.key_password or "")
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "no PEM"
        raise InvalidConfig("metrics.ssl.keystore.location", settings.key_store, str(reason)) from None
    return context


def _token(settings: HttpSecurity) -> str | None:
    token = settings.token
    name = "metrics.auth.token"
    if settings.token_file is not None:
        name = "metrics.auth.token.file"
        try:
            token = Path(settings.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "a token is of ASCII letters and digits"
            raise InvalidConfig(name, settings.token_file, str(reason)) from None
    if token is None:
        return None
    if len(token) < TOKEN_LENGTH_MIN or not all("!" <= one <= "~" for one in token):
        raise InvalidConfig(name, None, f"a token has at least {TOKEN_LENGTH_MIN} characters, and no space")
    return token


def _changing(credentials: HttpCredentials) -> ssl.SSLContext:
    """A context that hands every handshake over to the newest one, also of clients that name no host."""
    context = credentials.current
    assert context is not None

    def choose(connection: Any, _host: str | None, _context: ssl.SSLContext) -> None:
        connection.context = credentials.current

    context.sni_callback = choose
    return context


def _stamps(settings: HttpSecurity) -> list[tuple[int, int, int] | None]:
    """By which a file that was written anew, or put in the other's place, is told from the one before."""
    found: list[tuple[int, int, int] | None] = []
    for name in (settings.key_store, settings.token_file):
        try:
            state = None if name is None else Path(name).stat()
        except OSError:
            state = None
        found.append(None if state is None else (state.st_mtime_ns, state.st_ino, state.st_size))
    return found
