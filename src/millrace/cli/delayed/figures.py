"""What brokers tell of delayed messages on their HTTP ports."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.cli import clients
from millrace.cli.group.health import AUTHORITY_VARIABLE, TIMEOUT_S, TOKEN_VARIABLE, url_of

if TYPE_CHECKING:
    from millrace.cli.options import BrokerAddress

PREFIX: Final = "millrace_delayed_"
LATENESS: Final = "millrace_delayed_lateness_seconds"
QUANTILES: Final = (50, 99)


class DelayedStatus(NamedTuple):
    """The figures of all brokers together."""

    pending: int
    next_due_ms: int | None
    delivered: int
    cancelled: int
    dropped: int
    late_at_most_s: tuple[float | None, ...]
    """For each of QUANTILES the bound of the histogram under which so many percent of the delivered messages
    are; None where it is the last, which has no bound, or where there are none."""


def urls_of(address: BrokerAddress) -> list[str] | None:
    """The HTTP ports of all brokers as their settings name them; None unless every broker has one: what one
    of them has would be missing."""
    admin = clients.admin_client(address)
    brokers = clients.cluster_metadata(admin, address).brokers.values()
    urls = [url_of(admin, address, broker.id, broker.host) for broker in brokers]
    return None if None in urls else [url for url in urls if url is not None]


def status_at(urls: Iterable[str]) -> DelayedStatus | None:
    """What the brokers tell together; None if one does not answer."""
    pages = [_page(url) for url in urls]
    return None if not pages or None in pages else summed([page for page in pages if page is not None])


def summed(pages: Sequence[str]) -> DelayedStatus:
    sums: dict[str, float] = {}
    next_due_s: list[float] = []
    for page in pages:
        for line in page.splitlines():
            if not line.startswith(PREFIX):
                continue
            name, _, number = line.rpartition(" ")
            if name == f"{PREFIX}next_due_timestamp_seconds":
                next_due_s += [float(number)] if float(number) else []
            else:
                sums[name] = sums.get(name, 0.0) + float(number)
    return DelayedStatus(
        pending=int(sums.get(f"{PREFIX}pending", 0)),
        next_due_ms=round(min(next_due_s) * 1000) if next_due_s else None,
        delivered=int(sums.get(f"{PREFIX}delivered_total", 0)),
        cancelled=int(sums.get(f"{PREFIX}cancelled_total", 0)),
        dropped=int(sums.get(f"{PREFIX}dropped_total", 0)),
        late_at_most_s=tuple(_bound(sums, percent) for percent in QUANTILES),
    )


def _bound(sums: dict[str, float], percent: int) -> float | None:
    prefix = f'{LATENESS}_bucket{{le="'
    buckets = {name[len(prefix) : -2]: count for name, count in sums.items() if name.startswith(prefix)}
    total = buckets.pop("+Inf", 0.0)
    for bound, count in sorted(buckets.items(), key=lambda each: float(each[0])):
        if total and count >= total * percent / 100:
            return float(bound)
    return None


def _page(url: str) -> str | None:
    token = os.environ.get(TOKEN_VARIABLE)
    request = urllib.request.Request(
        f"{url.rstrip('/')}/metrics", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        trusted = None
        if url.startswith("https:"):
            trusted = ssl.create_default_context(cafile=os.environ.get(AUTHORITY_VARIABLE))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted) as response:
            page: bytes = response.read()
            return page.decode()
    except (urllib.error.URLError, OSError, UnicodeDecodeError):
        return None
