"""Whether a listener's certificate can be used, for whom it is, and how long it still counts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from millrace.cli.doctor.checks import Finding, Status
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.broker.config.config import BrokerConfig
    from millrace.broker.config.listeners import Listener

WARN_DAYS: Final = 30
_DAY_MS: Final = 86_400_000
_RENEW: Final = (
    "renew it: `millrace secure cert renew DIR`, or your authority; a running broker takes the new one"
)


def check_certificate(config: BrokerConfig, listener: Listener) -> Finding | None:
    """None for a listener without TLS."""
    from millrace.broker.config.listener_security import has_tls, tls_settings
    from millrace.broker.network.tls_contexts import build_context, load_material

    if not has_tls(listener):
        return None
    check = f"certificate of {listener.name}"
    try:
        settings = tls_settings(config, listener)
        material = load_material(settings)
        _ = build_context(settings, material)
    except MillraceError as error:
        return Finding(
            check=check, status=Status.FAIL, detail=str(error), fix="`millrace secure init` makes one"
        )
    # A chain counts for as long as all of its certificates do.
    days = (min(each.expires_ms for each in material.facts) - time.time() * 1000) / _DAY_MS
    hosts = ", ".join(sorted(material.facts[0].hosts)) or "no host"
    if days <= 0:
        return Finding(check=check, status=Status.FAIL, detail=f"ended {-days:.0f} days ago", fix=_RENEW)
    status = Status.WARN if days <= WARN_DAYS else Status.OK
    detail = f"counts for {days:.0f} more days, for {hosts}"
    return Finding(check=check, status=status, detail=detail, fix=_RENEW if status is Status.WARN else "")
