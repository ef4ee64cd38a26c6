"""What `millrace doctor` says of certificates, weeks before clients complain."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace.broker.config.config import BrokerConfig, load
from millrace.cli.doctor.certificates import check_certificate
from millrace.cli.doctor.checks import Finding, Status
from millrace.cli.secure.certificates import make_authority, make_certificate

DAY_S = 86_400


def finding(directory: Path, *, made_days_ago: int = 0, listener: str = "SSL") -> Finding | None:
    then = datetime.fromtimestamp(time.time() - made_days_ago * DAY_S, UTC)
    store = directory / "broker.pem"
    store.write_bytes(make_certificate(make_authority("a", then), "b", ["h.example"], then, 365).together)
    config = configured(store, listener)
    return check_certificate(config, config.listeners[0])


def configured(store: Path, listener: str = "SSL") -> BrokerConfig:
    return load(None, {"listeners": f"{listener}://127.0.0.1:9092", "ssl.keystore.location": str(store)}, {})


@pytest.mark.parametrize(
    "age, status, words",
    [
        (0, Status.OK, "counts for 365 more days, for h.example"),
        (340, Status.WARN, "counts for 25 more days"),
        (400, Status.FAIL, "ended 35 days ago"),
    ],
)
def test_the_end_is_told_ahead(tmp_path: Path, age: int, status: Status, words: str) -> None:
    found = finding(tmp_path, made_days_ago=age)
    assert found is not None
    assert (found.check, found.status) == ("certificate of SSL", status)
    assert words in found.detail
    assert ("renew it" in found.fix) is (status is not Status.OK)


def test_a_listener_without_tls_has_none(tmp_path: Path) -> None:
    assert finding(tmp_path, listener="PLAINTEXT") is None


def test_what_cannot_be_used_is_told_without_its_content(tmp_path: Path) -> None:
    store = tmp_path / "broker.pem"
    store.write_text("-----BEGIN PRIVATE KEY-----\ngeheim\n-----END PRIVATE KEY-----\n")
    config = configured(store)
    found = check_certificate(config, config.listeners[0])
    assert found is not None
    assert found.status is Status.FAIL
    assert "geheim" not in found.detail
