"""The TLS of one listener: the certificates that new handshakes use, the identity that a client's certificate
proves, how many handshakes an address gets, and what came of them.

Files are looked at every few seconds. New ones take the place of the old for handshakes from then on, and
live connections stay as they are. What cannot be used leaves the old ones where they are, and is logged and
counted.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from millrace.broker.network.seldom import Seldom
from millrace.broker.network.tls_contexts import Material, build_context, load_material, watched_files
from millrace.security.certificates import name_of
from millrace.security.errors import InvalidTlsMaterial
from millrace.security.principals import NOBODY, Identity
from millrace.security.tls import TlsSettings

if TYPE_CHECKING:
    from millrace.core.clock import Clock

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
WARN_BEFORE_MS: Final = 30 * 24 * 3_600_000
WARN_AGAIN_MS: Final = 24 * 3_600_000
BURST_S: Final = 2.0
"""So many seconds' worth of handshakes may come at once: clients open several connections."""
ADDRESSES_MAX: Final = 10_000
UNDER_WAY_MAX: Final = 5_000

_PLAINTEXT: Final = "plaintext"
_HINTS: Final = {
    "HTTP_REQUEST": (_PLAINTEXT, "this looks like HTTP"),
    "WRONG_VERSION_NUMBER": (_PLAINTEXT, "does the client speak plaintext on a listener with TLS?"),
    "BAD_RECORD_TYPE": (_PLAINTEXT, "does the client speak plaintext on a listener with TLS?"),
    "PACKET_LENGTH_TOO_LONG": (_PLAINTEXT, "does the client speak plaintext on a listener with TLS?"),
    "RECORD_LAYER_FAILURE": (_PLAINTEXT, "does the client speak plaintext on a listener with TLS?"),
    "UNSUPPORTED_PROTOCOL": ("protocol", "the client speaks no version of TLS that is enabled"),
    "NO_SHARED_CIPHER": ("protocol", "the client knows no cipher suite that is enabled"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("certificate", "ssl.client.auth is required, and it showed none"),
    "CERTIFICATE_VERIFY_FAILED": (
        "certificate",
        "no authority of ssl.truststore vouches for its certificate",
    ),
    "TLSV1_ALERT_UNKNOWN_CA": ("refused_by_client", "the client does not trust the broker's certificate"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "refused_by_client",
        "the client does not trust the broker's certificate",
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("refused_by_client", "the client refuses the broker's certificate"),
}


class TlsListener:
    """Lasts as long as its listener."""

    def __init__(self, listener: str, settings: TlsSettings, clock: Clock, lane: Executor | None) -> None:
        """Raises InvalidTlsMaterial: a listener does not start without what it needs."""
        self.listener = listener
        self.settings = settings
        self._clock = clock
        self._lane = lane
        self._seen = watched_files(settings)
        self._material = load_material(settings)
        self.context = build_context(settings, self._material)
        """For the next handshake."""
        self.turns = Turns(settings.handshakes_per_s)
        self.under_way_count = 0
        self.handshakes_count = 0
        self.failures: dict[str, int] = {}
        self.reloads_count = 0
        self.reload_failures_count = 0
        self._warned_ms: int | None = None
        self._seldom = Seldom(log)

    @property
    def expires_ms(self) -> int:
        """When the first certificate of the chain ends that does."""
        return min(facts.expires_ms for facts in self._material.facts)

    def identity_of(self, secured: ssl.SSLObject | None) -> Identity:
        """Whom a client's certificate proves, or nobody without one. Raises NoRuleMatches and
        InvalidDistinguishedName."""
        der = None if secured is None else secured.getpeercert(binary_form=True)
        if der is None:
            return NOBODY
        settings = self.settings
        return settings.rules.identity_of(name_of(der), groups_attribute=settings.groups_attribute)

    def failed(self, peer_host: str, error: BaseException, now_s: float) -> None:
        """A handshake came to nothing: count it, and say why, but not too often."""
        kind, hint = _explained(error)
        self.failures[kind] = self.failures.get(kind, 0) + 1
        self._seldom.tell(
            now_s, "no TLS with a client", peer=peer_host, listener=self.listener, reason=kind, hint=hint
        )

    # Other certificates.

    async def watch(self) -> None:
        """Look at the files again and again, and warn of certificates that end soon."""
        while True:
            self.warn_of_end()
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take the files if they are others than before."""
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(self._lane, watched_files, self.settings)
        if seen != self._seen:
            self._seen = seen
            await self.take(self.settings)

    async def take(self, settings: TlsSettings) -> None:
        """Use these settings, and what the files hold now, for handshakes from now on; or leave all as it is,
        and say why."""
        try:
            material, context = await asyncio.get_running_loop().run_in_executor(self._lane, _load, settings)
            self._check_same(settings, material)
        except InvalidTlsMaterial as error:
            self.reload_failures_count += 1
            log.error(
                "new certificates cannot be used, the old ones stay",
                extra={"listener": self.listener, "reason": str(error)},
            )
            return
        self.settings, self._material, self.context = settings, material, context
        self.turns.per_s = settings.handshakes_per_s
        self.reloads_count += 1
        self._warned_ms = None
        log.info("new certificates", extra={"listener": self.listener, "subject": material.facts[0].name})

    def warn_of_end(self) -> None:
        """Once a day, from weeks ahead."""
        now_ms = self._clock.wall_ms()
        left_ms = self.expires_ms - now_ms
        if left_ms > WARN_BEFORE_MS:
            return
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_AGAIN_MS:
            self._warned_ms = now_ms
            log.warning(
                "a certificate has ended" if left_ms <= 0 else "a certificate ends soon",
                extra={"listener": self.listener, "days_left": round(left_ms / 86_400_000, 1)},
            )

    def _check_same(self, settings: TlsSettings, material: Material) -> None:
        old, new = self._material.facts[0], material.facts[0]
        if old.name != new.name and not settings.are_other_names_allowed:
            raise InvalidTlsMaterial(
                f"the name was {old.name} and is {new.name} now: set ssl.allow.dn.changes to allow that"
            )
        gone = old.hosts - new.hosts
        if gone and not settings.are_fewer_hosts_allowed:
            names = ", ".join(sorted(gone))
            raise InvalidTlsMaterial(
                f"it is not for {names} any more: set ssl.allow.san.changes to allow that"
            )


class Turns:
    """When an address may begin its next handshake: each costs us about a millisecond of the loop."""

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self._due_s: dict[str, float] = {}
        """For each address, when all handshakes that it was given would be done at its rate."""

    def wait_s(self, host: str, now_s: float, patience_s: float) -> float | None:
        """How long the next one has to wait; None if that is longer than it may take."""
        due_s = max(self._due_s.get(host, now_s), now_s)
        wait_s = max(0.0, due_s - now_s - BURST_S)
        if wait_s > patience_s:
            return None
        if host not in self._due_s and len(self._due_s) >= ADDRESSES_MAX:
            self._due_s = {known: due for known, due in self._due_s.items() if due > now_s}
            if len(self._due_s) >= ADDRESSES_MAX:
                return None
        self._due_s[host] = due_s + 1 / self.per_s
        return wait_s


def _load(settings: TlsSettings) -> tuple[Material, ssl.SSLContext]:
    material = load_material(settings)
    return material, build_context(settings, material)


def _explained(error: BaseException) -> tuple[str, str]:
    """What to count a failure as, and a sentence for the log."""
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        return _HINTS.get(error.reason, ("other", error.reason))
    if isinstance(error, TimeoutError) or "longer than" in str(error):
        return "timeout", "the handshake took too long"
    if isinstance(error, ConnectionError | EOFError | ssl.SSLError):
        return "closed", "the client closed the connection"
    return "principal", str(error)
