"""A data directory of one broker of a cluster fails: others lead what it led, and it is in sync again only
when it has everything again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.process import eventually
from tests.harness.topics import unique_name
from tests.harness.two_disks import TwoDisks
from tests.harness.writer import NumberedWriter


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    for node_id, broker in list(cluster.brokers.items()):
        settings = {**broker.settings, "replica.high.watermark.checkpoint.interval.ms": "200"}
        cluster.brokers[node_id] = TwoDisks(tmp_path / f"broker-{node_id}", settings)
    cluster.start()
    yield cluster
    cluster.end()


@pytest.mark.timeout(240)
def test_others_lead_what_a_failed_directory_led(two_disks: Cluster) -> None:
    cluster = two_disks
    topic = unique_name("disk")
    cluster.create_topic(topic, 2)
    leader_id = cluster.partitions(topic)[0].leader
    broker = cluster.brokers[leader_id]
    assert isinstance(broker, TwoDisks)
    if broker.home_of(topic, 0) == broker.data_dir:
        assert broker.alter(broker.second_dir, topic, 0) == ["none"]
        eventually((broker.second_dir / f"{topic}-0").is_dir, DEADLINE_S)
    with NumberedWriter(cluster.bootstrap, topic, 0) as writer:
        eventually(lambda: writer.written > 100, DEADLINE_S)
        elsewhere = broker.directory / "elsewhere"
        broker.second_dir.rename(elsewhere)
        eventually(lambda: cluster.partitions(topic)[0].leader not in (leader_id, -1), DEADLINE_S)
        eventually(lambda: leader_id not in cluster.partitions(topic)[0].isr, DEADLINE_S)
        at = writer.written
        eventually(lambda: writer.written > at + 100, DEADLINE_S)
        if (broker.data_dir / f"{topic}-1").is_dir():
            # What lies in the other directory stays in sync.
            assert leader_id in cluster.partitions(topic)[1].isr

        # A start without the disk: nothing is made anew there, and it is not in sync.
        broker.kill()
        broker.start()
        at = writer.written
        eventually(lambda: writer.written > at + 100, DEADLINE_S)
        assert leader_id not in cluster.partitions(topic)[0].isr
        assert not (broker.data_dir / f"{topic}-0").exists()

        # The disk is back, with what it had.
        broker.stop()
        shutil.rmtree(broker.second_dir)
        elsewhere.rename(broker.second_dir)
        broker.start()
        eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
    assert not writer.failures, writer.failures[:5]
    assert len(writer.acknowledged) == writer.written
