"""What the configuration means to each part: units are turned into those of the part, and 0 into what it
stands for."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from millrace.broker.assembly import part_settings
from millrace.broker.config.config import load
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.streams.commands import StreamsSettings
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.store.etcd_calls import EtcdSettings
from millrace.queues.settings import ShareSettings

PARTS = [
    function
    for name, function in inspect.getmembers(part_settings, inspect.isfunction)
    if function.__module__ == part_settings.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_part_can_be_built_from_the_defaults(part: object) -> None:
    assert callable(part)
    part(load(None, {}, {}))


def test_times_are_given_in_the_units_of_the_parts() -> None:
    config = load(
        None,
        {
            "offsets.retention.minutes": "2",
            "leader.imbalance.check.interval.seconds": "3",
            "socket.idle.poll.us": "250",
            "shutdown.timeout.ms": "1500",
            "connections.max.idle.ms": "2000",
        },
        {},
    )
    assert part_settings.group_settings(config).offsets_retention_ms == 120_000
    assert part_settings.membership_settings(config).controller.rebalance_interval_ms == 3_000
    assert part_settings.idle_poll_s(config) == pytest.approx(0.000_25)
    assert part_settings.shutdown_s_max(config) == 1.5
    assert part_settings.server_limits(config).idle_timeout_s == 2.0


def test_without_a_bound_on_files_the_machine_has_one() -> None:
    assert part_settings.open_files_max(load(None, {"log.open.files.max": "-1"}, {})) is None
    assert part_settings.open_files_max(load(None, {"log.open.files.max": "70"}, {})) == 70


def test_only_a_directory_that_others_can_stand_in_for_is_given_up() -> None:
    assert not part_settings.directory_settings(load(None, {"log.dirs": "/a"}, {})).gives_up_unwritable
    assert part_settings.directory_settings(load(None, {"log.dirs": "/a,/b"}, {})).gives_up_unwritable


def test_followers_serve_readers_where_a_selector_is_named() -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    assert not part_settings.request_settings(load(None, {}, {})).reads_from_followers
    found = part_settings.request_settings(load(None, {"replica.selector.class": selector}, {}))
    assert found.reads_from_followers


def test_certificates_are_read_when_the_store_is_opened(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_bytes(b"certificate")
    config = load(None, {"etcd.tls.ca.file": str(certificate)}, {})
    found = part_settings.etcd_settings(config)
    assert isinstance(found, EtcdSettings)
    assert found.certificate_authority == b"certificate"
    certificate.unlink()
    with pytest.raises(InvalidConfig, match=r"etcd\.tls\.ca\.file.*cannot be read"):
        part_settings.etcd_settings(config)


def test_a_start_names_the_settings_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    part_settings.name_those_without_effect(load(None, {"num.partitions": "3"}, {}))
    assert not caplog.records
    part_settings.name_those_without_effect(
        load(None, {"num.io.threads": "8", "log.cleaner.threads": "2"}, {})
    )
    (record,) = caplog.records
    assert record.__dict__["settings"] == "log.cleaner.threads, num.io.threads"


def test_a_share_group_has_its_own_values_before_those_of_the_broker() -> None:
    config = load(
        None,
        {"group.share.delivery.count.limit": "7", "group.share.record.lock.duration.ms": "20000"},
        {},
    )
    configs = {
        "share.record.lock.duration.ms": "1000",
        "share.isolation.level": "read_committed",
        "share.order": "key",
        "share.heartbeat.interval.ms": "6000",
    }
    found = part_settings.share_settings(config, configs)
    assert found == ShareSettings(
        lock_duration_ms=1_000, delivery_count_limit=7, reads_committed=True, is_ordered_by_key=True
    )
    assert part_settings.share_group_settings(config, configs) == ShareGroupSettings(
        heartbeat_interval_ms=6_000
    )


def test_settings_of_share_groups_have_the_same_defaults_in_the_table_and_in_the_code() -> None:
    assert part_settings.share_settings(load(None, {}, {})) == ShareSettings()
    assert part_settings.share_group_settings(load(None, {}, {})) == ShareGroupSettings()


def test_a_streams_group_has_its_own_values_before_those_of_the_broker() -> None:
    config = load(None, {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.max.size": "9"}, {})
    configs = {"streams.num.standby.replicas": "2", "streams.heartbeat.interval.ms": "6000"}
    assert part_settings.streams_settings(config, configs) == StreamsSettings(
        heartbeat_interval_ms=6_000, size_max=9, standby_count=2, initial_rebalance_delay_ms=0
    )
    assert part_settings.streams_settings(load(None, {}, {})) == StreamsSettings()
