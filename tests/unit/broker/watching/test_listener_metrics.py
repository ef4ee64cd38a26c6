"""Logins, handshakes and certificates on the page of figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.network.login import ListenerLogins, LoginCounts
from millrace.broker.watching.listener_metrics import listener_families, listener_figures
from millrace.security.sasl.session import SaslSettings


def test_every_way_to_come_in_is_counted(tmp_path: Path) -> None:
    logins = ListenerLogins("IN", SaslSettings(mechanisms={}), cast("Any", None), None)
    logins.counts["PLAIN"] = LoginCounts(succeeded=3, failed=2, repeated=1)
    logins.expired_killed_count = 4
    tls = SimpleNamespace(
        handshakes_count=5,
        failures={"plaintext": 6},
        reloads_count=7,
        reload_failures_count=8,
        expires_ms=90_000,
    )
    figures = listener_figures({"IN": logins}, cast("Any", {"IN": tls}), 30_000)
    tls.failures["later"] = 1
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in listener_families(figures)
        for sample in family.samples
    }
    assert found == {
        ("millrace_logins_total", "IN", "PLAIN", "success"): 3,
        ("millrace_logins_total", "IN", "PLAIN", "failure"): 2,
        ("millrace_logins_total", "IN", "PLAIN", "reauthentication"): 1,
        ("millrace_expired_connections_killed_total", "IN"): 4,
        ("millrace_logins_waiting", "IN"): 0,
        ("millrace_tls_handshakes_total", "IN"): 5,
        ("millrace_tls_handshake_failures_total", "IN", "plaintext"): 6,
        ("millrace_certificate_reloads_total", "IN", "success"): 7,
        ("millrace_certificate_reloads_total", "IN", "failure"): 8,
        ("millrace_certificate_expires_in_seconds", "IN"): 60,
    }
