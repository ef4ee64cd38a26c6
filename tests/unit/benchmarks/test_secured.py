"""The secured listener is the same for both systems, and what clients are told fits it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from benchmarks.processes import GeneratorFailed
from benchmarks.secured import Secured
from benchmarks.workloads.secured import fetch_rate


def test_both_systems_get_the_same_listener(tmp_path: Path) -> None:
    secured = Secured(tmp_path, 9443)
    ours = secured.broker_settings(9092)
    kafkas = secured.broker_settings(9092, {"CONTROLLER": "127.0.0.1:9093"})
    assert ours["listeners"] == "PLAINTEXT://127.0.0.1:9092,SECURE://127.0.0.1:9443"
    assert kafkas["listeners"] == f"{ours['listeners']},CONTROLLER://127.0.0.1:9093"
    assert kafkas["advertised.listeners"] == ours["advertised.listeners"] == ours["listeners"]
    assert ours["listener.security.protocol.map"] == "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"
    differing = {name for name in ours if ours[name] != kafkas[name]}
    assert differing == {"listeners", "listener.security.protocol.map"}


def test_the_certificate_is_one_that_clients_of_the_authority_trust(tmp_path: Path) -> None:
    secured = Secured(tmp_path / "files", 9443)
    secured.write_certificates()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "files" / "server.pem")
    client = ssl.create_default_context(cafile=secured.client["ssl.ca.location"])
    assert client.cert_store_stats()["x509_ca"] == 1
    assert "BEGIN PRIVATE KEY" in (tmp_path / "files" / "server.pem").read_text(), "Java reads PKCS#8 alone"
    assert "username" in secured.write_java_client().read_text()


def test_the_rate_of_fetching_is_read_from_the_last_line() -> None:
    output = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-01-01 00:00:00:000, 2026-01-01 00:00:01:000, 9.5, 9.5, 10000, 10000.0, "
        "500, 500, 19.0, 20000.0\n"
    )
    assert fetch_rate(output) == 20_000.0
    with pytest.raises(GeneratorFailed):
        fetch_rate("nothing")
