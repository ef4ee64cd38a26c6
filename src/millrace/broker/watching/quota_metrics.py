"""Who is held to which rate, who was throttled and for how long, and what tenants use, in Prometheus' terms.

Each family has at most `LABELS_MAX` clients; of more, the rest is one line without names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from millrace.metadata.tenant_partitions import partitions_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.handlers.services import Services
    from millrace.broker.network.server import Server
    from millrace.security.quotas.precedence import Bucket


class TenantFigures(NamedTuple):
    tenant: str
    connections: int
    connections_refused: int
    partitions: int
    stored_bytes: int | None
    """None where nobody adds it up."""
    bytes_in: int
    bytes_out: int


class QuotaFigures(NamedTuple):
    """A snapshot, safe to read from another thread."""

    throttled: list[tuple[tuple[str, str, str], int, int]]
    """Quota, user and client id; how often; ms altogether."""
    rates: list[tuple[str, Bucket, float, float]]
    muted: int
    waiting: int
    connections: dict[str, int]
    tenants: list[TenantFigures]


def quota_figures(server: Server, services: Services) -> QuotaFigures:
    throttling, admission = services.throttling, server.admission
    return QuotaFigures(
        throttled=[(whom, each.count, each.sum_ms) for whom, each in throttling.counts.items()],
        rates=throttling.figures(round(server.ticks() * 1000)),
        muted=throttling.muted_count,
        waiting=admission.waiting_count,
        connections=dict(admission.throttled),
        tenants=_tenant_figures(services),
    )


def _tenant_figures(services: Services) -> list[TenantFigures]:
    image = services.metadata.image
    tenants = image.security.tenants
    if not len(tenants):
        return []
    moved = {name: [0, 0] for name in tenants.tenants}
    for topic, stats in services.partitions.stats.items():
        owner = tenants.owner_of(topic)
        if owner is not None:
            moved[owner.name][0] += stats.bytes_in
            moved[owner.name][1] += stats.bytes_out
    connections = services.throttling.tenants
    stored = {} if services.tenant_storage is None else services.tenant_storage.stored
    return [
        TenantFigures(
            name,
            connections.counts.get(name, 0),
            connections.refused.get(name, 0),
            partitions_of(image, tenant),
            stored.get(name),
            *moved[name],
        )
        for name, tenant in tenants.tenants.items()
    ]


def quota_families(figures: QuotaFigures) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ("quota", "user", "client_id")
    counts = CounterMetricFamily(
        "millrace_quota_throttles", "How often a client was told to be silent, by quota.", labels=labels
    )
    times = CounterMetricFamily(
        "millrace_quota_throttle_seconds", "For how long altogether, by quota.", labels=labels
    )
    for whom, count, sum_ms in figures.throttled:
        counts.add_metric(whom, count)
        times.add_metric(whom, sum_ms / 1000)
    yield counts
    yield times
    rates = GaugeMetricFamily(
        "millrace_quota_rate",
        "What clients with a quota take a second: bytes, or percent of the loop's time.",
        labels=(*labels, "tenant"),
    )
    bounds = GaugeMetricFamily(
        "millrace_quota_bound", "What they may take of this broker.", labels=(*labels, "tenant")
    )
    for key, bucket, rate, bound in figures.rates:
        rates.add_metric((key, *bucket), rate)
        bounds.add_metric((key, *bucket), bound)
    yield rates
    yield bounds
    yield GaugeMetricFamily(
        "millrace_connections_muted", "Connections that are not read from because of a quota.", figures.muted
    )
    yield GaugeMetricFamily(
        "millrace_connections_waiting",
        "Connections that wait to be let in, or are held before they are closed.",
        figures.waiting,
    )
    throttled = CounterMetricFamily(
        "millrace_connections_throttled",
        "Connections that had to wait for their turn (waited), or were held and closed because their address "
        "came too fast (address_rate).",
        labels=("reason",),
    )
    for reason, count in sorted(figures.connections.items()):
        throttled.add_metric((reason,), count)
    yield throttled
    yield from _tenant_families(figures.tenants)


def _tenant_families(tenants: list[TenantFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for kind, name, text, attribute in (
        (
            GaugeMetricFamily,
            "millrace_tenant_connections",
            "Connections of a tenant to this broker.",
            "connections",
        ),
        (
            CounterMetricFamily,
            "millrace_tenant_connections_refused",
            "Connections that were ended because the tenant had enough.",
            "connections_refused",
        ),
        (
            GaugeMetricFamily,
            "millrace_tenant_partitions",
            "Partitions of a tenant in the cluster.",
            "partitions",
        ),
        (
            GaugeMetricFamily,
            "millrace_tenant_stored_bytes",
            "Bytes that a tenant with a limit stores in the cluster.",
            "stored_bytes",
        ),
        (
            CounterMetricFamily,
            "millrace_tenant_bytes_in",
            "Bytes of records appended to a tenant's topics on this broker.",
            "bytes_in",
        ),
        (
            CounterMetricFamily,
            "millrace_tenant_bytes_out",
            "Bytes of records sent from them to consumers.",
            "bytes_out",
        ),
    ):
        family = kind(name, text, labels=("tenant",))
        for figures in tenants:
            value = getattr(figures, attribute)
            if value is not None:
                family.add_metric((figures.tenant,), value)
        yield family
