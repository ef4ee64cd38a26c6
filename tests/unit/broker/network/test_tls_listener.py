"""Certificates of a listener: others are taken or not, ends are told weeks ahead, storms are held back."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.network import tls_listener
from millrace.broker.network.tls_listener import BURST_S, TlsListener, Turns
from millrace.security.errors import InvalidTlsMaterial
from millrace.security.mapping_rules import parse_mapping_rules
from millrace.security.principals import NOBODY
from millrace.security.tls import KeyStore, TlsSettings
from tests.harness.tls_files import Authority, parts

DAY_MS = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms


def listener_of(authority: Authority, clock: Clock | None = None, **settings: Any) -> TlsListener:
    keys = KeyStore(location=str(authority.issue(expires=dt.datetime(2027, 6, 1, tzinfo=dt.UTC))))
    chosen = TlsSettings(keys=keys, rules=parse_mapping_rules("DEFAULT"), **settings)
    return TlsListener("IN", chosen, clock or Clock(), None)


def test_a_listener_does_not_start_without_what_it_needs(tmp_path: Path) -> None:
    settings = TlsSettings(
        keys=KeyStore(location=str(tmp_path / "none")), rules=parse_mapping_rules("DEFAULT")
    )
    with pytest.raises(InvalidTlsMaterial, match="cannot be read"):
        TlsListener("IN", settings, Clock(), None)


def test_another_name_or_fewer_hosts_need_a_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        listener = listener_of(authority)
        old = listener.context
        key, chain = parts(authority.issue("localhost", name="fewer"))
        settings = replace(listener.settings, keys=KeyStore(key=key, chain=chain))
        await listener.take(settings)
        assert (listener.context, listener.reload_failures_count) == (old, 1)
        assert "ssl.allow.dn.changes" in caplog.records[-1].__dict__["reason"]
        await listener.take(replace(settings, are_other_names_allowed=True))
        assert (listener.context, listener.reload_failures_count) == (old, 2)
        assert "not for 127.0.0.1 any more" in caplog.records[-1].__dict__["reason"]
        both = replace(settings, are_other_names_allowed=True, are_fewer_hosts_allowed=True)
        await listener.take(both)
        assert listener.context is not old
        assert (listener.reloads_count, listener.settings) == (1, both)

    asyncio.run(main())


def test_the_end_of_a_certificate_is_told_weeks_ahead_and_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    listener = listener_of(Authority(tmp_path), clock)
    end_ms = listener.expires_ms
    assert end_ms == int(dt.datetime(2027, 6, 1, tzinfo=dt.UTC).timestamp() * 1000)
    clock.now_ms = end_ms - 31 * DAY_MS
    listener.warn_of_end()
    assert not caplog.records
    clock.now_ms = end_ms - 29 * DAY_MS
    for _ in range(3):
        listener.warn_of_end()
    assert [record.message for record in caplog.records] == ["a certificate ends soon"]
    assert caplog.records[0].__dict__["days_left"] == 29
    clock.now_ms = end_ms + DAY_MS
    listener.warn_of_end()
    assert caplog.records[-1].message == "a certificate has ended"


def test_files_are_looked_at_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "LOOK_S", 0.01)

    async def main() -> None:
        authority = Authority(tmp_path)
        listener = listener_of(authority, are_other_names_allowed=True)
        task = asyncio.get_running_loop().create_task(listener.watch())
        await asyncio.sleep(0.03)
        assert listener.reloads_count == 0
        authority.issue()
        async with asyncio.timeout(5):
            while listener.reloads_count == 0:
                await asyncio.sleep(0.005)
        task.cancel()

    asyncio.run(main())


def test_nobody_without_a_certificate(tmp_path: Path) -> None:
    listener = listener_of(Authority(tmp_path))
    assert listener.identity_of(None) is NOBODY


def _ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    "error, kind, words",
    [
        (_ssl_error("WRONG_VERSION_NUMBER"), "plaintext", "plaintext on a listener with TLS"),
        (_ssl_error("HTTP_REQUEST"), "plaintext", "HTTP"),
        (_ssl_error("NO_SHARED_CIPHER"), "protocol", "cipher"),
        (_ssl_error("SOMETHING_NEW"), "other", "SOMETHING_NEW"),
        (ConnectionAbortedError("SSL handshake is taking longer than 1 seconds"), "timeout", "too long"),
        (ConnectionResetError(), "closed", "closed"),
    ],
)
def test_a_failure_is_counted_and_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, kind: str, words: str
) -> None:
    listener = listener_of(Authority(tmp_path))
    for _ in range(20):
        listener.failed("10.0.0.1", error, 1.0)
    assert listener.failures == {kind: 20}
    assert len(caplog.records) < 10
    assert words in caplog.records[0].__dict__["hint"]


def test_an_address_gets_its_rate_and_waits_beyond_it() -> None:
    turns = Turns(10)
    waits = [turns.wait_s("a", 100.0, 1.0) for _ in range(40)]
    at_once = [wait for wait in waits if wait == 0.0]
    assert len(at_once) == 10 * BURST_S + 1
    later = [wait for wait in waits if wait]
    assert later == sorted(later)
    assert later[-1] <= 1.0
    assert waits[-1] is None
    # Others are not held back by that, and time gives new turns.
    assert turns.wait_s("b", 100.0, 1.0) == 0.0
    assert turns.wait_s("a", 110.0, 1.0) == 0.0


def test_addresses_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "ADDRESSES_MAX", 3)
    turns = Turns(1)
    for host in "abc":
        assert turns.wait_s(host, 0.0, 1.0) == 0.0
    assert turns.wait_s("d", 0.5, 1.0) is None
    assert turns.wait_s("d", 1.5, 1.0) == 0.0
