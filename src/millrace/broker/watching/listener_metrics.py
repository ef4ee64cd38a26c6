"""How clients come in, in Prometheus' terms: logins, handshakes of TLS, and the end of certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.network.login import ListenerLogins
    from millrace.broker.network.tls_listener import TlsListener


class LoginFigures(NamedTuple):
    listener: str
    mechanism: str
    result: str
    logins: int


class TlsFigures(NamedTuple):
    listener: str
    handshakes: int
    failures: dict[str, int]
    reloads: int
    reload_failures: int
    expires_in_s: float


class ListenerFigures(NamedTuple):
    """Of all listeners that ask who somebody is, or speak TLS."""

    logins: list[LoginFigures]
    expired: dict[str, int]
    waiting: dict[str, int]
    tls: list[TlsFigures]


def listener_figures(
    logins: Mapping[str, ListenerLogins], tls: Mapping[str, TlsListener], now_ms: int
) -> ListenerFigures:
    return ListenerFigures(
        logins=[
            LoginFigures(name, mechanism, result, count)
            for name, each in logins.items()
            for mechanism, counts in each.counts.items()
            for result, count in (
                ("success", counts.succeeded),
                ("failure", counts.failed),
                ("reauthentication", counts.repeated),
            )
        ],
        expired={name: each.expired_killed_count for name, each in logins.items()},
        waiting={name: each.waiting_count for name, each in logins.items()},
        tls=[
            TlsFigures(
                name,
                each.handshakes_count,
                dict(each.failures),
                each.reloads_count,
                each.reload_failures_count,
                (each.expires_ms - now_ms) / 1000,
            )
            for name, each in tls.items()
        ],
    )


def listener_families(figures: ListenerFigures) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    logins = CounterMetricFamily(
        "millrace_logins", "Logins by how they ended.", labels=("listener", "mechanism", "result")
    )
    for login in figures.logins:
        logins.add_metric((login.listener, login.mechanism, login.result), login.logins)
    yield logins
    expired = CounterMetricFamily(
        "millrace_expired_connections_killed",
        "Connections that were closed since their session had ended and they did not log in again.",
        labels=("listener",),
    )
    for listener, count in figures.expired.items():
        expired.add_metric((listener,), count)
    yield expired
    waiting = GaugeMetricFamily(
        "millrace_logins_waiting", "Logins whose password or token is being checked.", labels=("listener",)
    )
    for listener, count in figures.waiting.items():
        waiting.add_metric((listener,), count)
    yield waiting
    yield from _tls_families(figures.tls)


def _tls_families(listeners: list[TlsFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    handshakes = CounterMetricFamily(
        "millrace_tls_handshakes", "Handshakes of TLS that were completed.", labels=("listener",)
    )
    failures = CounterMetricFamily(
        "millrace_tls_handshake_failures",
        "Handshakes of TLS that came to nothing, by reason.",
        labels=("listener", "reason"),
    )
    reloads = CounterMetricFamily(
        "millrace_certificate_reloads",
        "New certificates that were taken, or could not be used.",
        labels=("listener", "result"),
    )
    expiry = GaugeMetricFamily(
        "millrace_certificate_expires_in_seconds",
        "Time until the first certificate of the listener's chain ends.",
        labels=("listener",),
    )
    for tls in listeners:
        handshakes.add_metric((tls.listener,), tls.handshakes)
        for reason, count in sorted(tls.failures.items()):
            failures.add_metric((tls.listener, reason), count)
        reloads.add_metric((tls.listener, "success"), tls.reloads)
        reloads.add_metric((tls.listener, "failure"), tls.reload_failures)
        expiry.add_metric((tls.listener,), tls.expires_in_s)
    yield handshakes
    yield failures
    yield reloads
    yield expiry
