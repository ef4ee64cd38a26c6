"""TLS of the listeners that have it, from the configuration; and a warning about those that ask nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.broker.assembly.tls import build_tls, warn_of_open_listeners
from millrace.broker.config.config import load
from millrace.metadata.errors import InvalidConfig
from tests.harness.tls_files import Authority
from tests.unit.broker.assembly.grounds import ground_of


def test_listeners_with_tls_follow_the_settings(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        first, second = authority.issue(name="first"), authority.issue(name="second")
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.location": str(first),
            "ssl.allow.dn.changes": "true",
        }
        ground = ground_of(tmp_path, settings)
        found = build_tls(ground)
        assert list(found) == ["SSL"]
        tls = found["SSL"]
        name = "listener.name.ssl.ssl.keystore.location"
        ground.config.replace(ground.config.now.with_dynamic(default={}, broker={name: str(second)}))
        async with asyncio.timeout(5):
            while tls.reloads_count == 0:
                await asyncio.sleep(0.005)
        assert tls.settings.keys.location == str(second)
        ground.config.replace(ground.config.now.with_dynamic(default={}, broker={"num.partitions": "2"}))
        ground.config.replace(ground.config.now.with_dynamic(default={}, broker={"ssl.keystore.type": "JKS"}))
        assert tls.settings.keys.kind == "PEM"
        await ground.background.end()

    asyncio.run(main())


def test_the_start_ends_where_the_files_cannot_be_used(tmp_path: Path) -> None:
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(tmp_path / "none.pem")}
    with pytest.raises(InvalidConfig, match=r"name\.ssl\.ssl\.keystore\.location: .*cannot be read"):
        build_tls(ground_of(tmp_path, settings))


@pytest.mark.parametrize(
    "settings, names",
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, None),
        ({"listeners": "PLAINTEXT://localhost:0"}, None),
        ({"listeners": "PLAINTEXT://[::1]:0"}, None),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:0"}, "PLAINTEXT"),
        ({"listeners": "PLAINTEXT://10.0.0.1:0"}, "PLAINTEXT"),
        ({"listeners": "SSL://:0", "ssl.keystore.location": "/k"}, "SSL"),
        (
            {
                "listeners": "SSL://:0",
                "ssl.keystore.location": "/k",
                "ssl.client.auth": "required",
                "ssl.truststore.location": "/t",
            },
            None,
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://:0,PLAINTEXT://host:1",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "PLAINTEXT",
        ),
    ],
)
def test_a_broker_that_others_reach_and_that_asks_nobody_says_so(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], names: str | None
) -> None:
    warn_of_open_listeners(load(None, settings, {}))
    if names is None:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert record.__dict__["listeners"] == names
        assert "everybody who reaches this broker may use it" in record.message
