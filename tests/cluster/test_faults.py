"""A cluster under the load of real clients while its processes are killed, paused and restarted and its links
are cut. The clients' history is judged by the simulator's checkers: nothing acknowledged is lost, nothing is
there twice, order holds, all copies are equal, transactions are whole, groups go on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial

import pytest

from millrace.wire.records import Record, build_batch
from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.cluster.load.java import JavaLoad
from tests.cluster.load.workload import Workload
from tests.harness.network import ETCD, choose_network, node
from tests.harness.process import eventually
from tests.harness.protocol import PRODUCE_VERSION, produce_request
from tests.harness.raw import PRODUCE, RawConnection
from tools.kafka_distribution import KafkaUnavailable, locate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEASE_S = 3
SETTINGS = {
    "broker.session.timeout.ms": str(LEASE_S * 1000),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    # Members of the new protocol learn what is theirs with a heartbeat.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("faults"), SETTINGS, network=choose_network(3))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaLoad | None]:
    """None where there is no Java: then librdkafka is the only load."""
    try:
        distribution = locate()
    except KafkaUnavailable:
        yield None
        return
    load = JavaLoad(distribution, tmp_path_factory.mktemp("java-load"))
    yield load
    load.end()


@pytest.fixture
def workload(cluster: Cluster, java: JavaLoad | None, request: pytest.FixtureRequest) -> Iterator[Workload]:
    """Under way, on a whole cluster; and whatever the scenario did, the next one finds it whole again."""
    workload = Workload(cluster, java, request.node.name.removeprefix("test_"))
    try:
        workload.start()
        workload.goes_on()
        yield workload
    finally:
        make_whole(cluster)
        workload.end()


def make_whole(cluster: Cluster) -> None:
    cluster.network.heal()
    if not cluster.etcd.is_running():
        cluster.etcd.start()
    for broker in cluster.brokers.values():
        if broker.is_running():
            broker.resume()
        else:
            broker.launch()
    for broker in cluster.brokers.values():
        broker.wait_ready()
    eventually(cluster.is_whole, DEADLINE_S)


def leader_of(cluster: Cluster, topic: str) -> int:
    """Of the first partition."""
    eventually(lambda: bool(cluster.partitions(topic)), DEADLINE_S)
    return cluster.partitions(topic)[0].leader


def others(cluster: Cluster, node_id: int) -> list[int]:
    return [other for other in cluster.brokers if other != node_id]


def is_led_by_another(cluster: Cluster, topic: str, former: int) -> bool:
    """As those see it who can know."""
    views = [cluster.partitions(topic, seen_by=other).get(0) for other in others(cluster, former)]
    return all(view is not None and view.leader not in (former, -1) for view in views)


def is_in_sync(cluster: Cluster, workload: Workload) -> bool:
    return cluster.is_in_sync(workload.topic) and cluster.is_in_sync(workload.copies)


def test_leaders_are_killed(cluster: Cluster, workload: Workload) -> None:
    for _ in range(2):
        leader = leader_of(cluster, workload.topic)
        workload.happened(f"kill {leader}")
        cluster.brokers[leader].kill()
        workload.goes_on()
        workload.happened(f"start {leader}")
        cluster.brokers[leader].start()
        eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()


def test_a_leader_is_paused_past_its_lease(cluster: Cluster, workload: Workload) -> None:
    """F11: what reaches it meanwhile is in its sockets when it wakes up, before it can know that it was
    replaced."""
    topic = workload.topic
    leader = leader_of(cluster, topic)
    broker = cluster.brokers[leader]
    with RawConnection((broker.host, broker.port)) as connection:
        workload.happened(f"pause {leader}")
        broker.pause()
        late = [f"{topic}|late|{acks}".encode() for acks in (1, -1)]
        asked = [
            connection.send(PRODUCE, PRODUCE_VERSION, produce_request({(topic, 0): batch_of(value)}, acks))
            for acks, value in zip((1, -1), late, strict=True)
        ]
        eventually(partial(is_led_by_another, cluster, topic, leader), DEADLINE_S)
        workload.goes_on()
        workload.happened(f"resume {leader}")
        broker.resume()
        for correlation_id in asked:
            answer = connection.receive(PRODUCE, PRODUCE_VERSION, correlation_id)
            (result,) = answer["responses"][0]["partition_responses"]
            assert result["error_code"] == "not_leader_or_follower", result
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.goes_on()
    workload.check()
    for log in cluster.log_bytes(topic, 0).values():
        assert not any(value in log for value in late), "a record that was refused is there"


def batch_of(value: bytes) -> bytes:
    return bytes(build_batch([Record(0, int(time.time() * 1000), None, value)]))


def test_a_leader_is_cut_off_from_its_followers(cluster: Cluster, workload: Workload) -> None:
    """From one: it leaves those in sync, and the rest go on. From both: nothing is acknowledged meanwhile."""
    leader = leader_of(cluster, workload.topic)
    first, second = others(cluster, leader)
    workload.happened(f"cut {leader} and {first}")
    cluster.network.cut_both(node(leader), [node(first)])
    eventually(lambda: first not in cluster.partitions(workload.topic)[0].isr, DEADLINE_S)
    workload.goes_on(writers_only=True)
    workload.happened(f"cut {leader} and {second}")
    cluster.network.cut_both(node(leader), [node(second)])
    time.sleep(LEASE_S)
    workload.happened("heal")
    cluster.network.heal()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.goes_on()
    workload.check()


def test_a_leader_is_cut_off_from_all_but_clients(cluster: Cluster, workload: Workload) -> None:
    leader = leader_of(cluster, workload.topic)
    workload.happened(f"isolate {leader}")
    cluster.network.cut_both(node(leader), [ETCD, *(node(other) for other in others(cluster, leader))])
    eventually(partial(is_led_by_another, cluster, workload.topic, leader), DEADLINE_S)
    workload.goes_on()
    workload.happened("heal")
    cluster.network.heal()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.goes_on()
    workload.check()


def test_a_leader_is_cut_off_from_etcd(cluster: Cluster, workload: Workload) -> None:
    """F12: it stops leading before its lease can end, though clients and followers still reach it."""
    leader = leader_of(cluster, workload.topic)
    workload.happened(f"cut {leader} and etcd")
    cluster.network.cut_both(node(leader), [ETCD])
    eventually(partial(is_led_by_another, cluster, workload.topic, leader), DEADLINE_S)
    assert "stops leading" in cluster.brokers[leader].output()
    workload.goes_on()
    workload.happened("heal")
    cluster.network.heal()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()


def test_links_are_cut_one_way(cluster: Cluster, workload: Workload) -> None:
    """Who asks is heard, and does not hear the answer; or the other way round."""
    leader = leader_of(cluster, workload.topic)
    first, second = others(cluster, leader)
    for source, target in ((leader, first), (second, leader)):
        workload.happened(f"cut {source} to {target}")
        cluster.network.cut(node(source), node(target))
        workload.goes_on(writers_only=True)
        cluster.network.heal()
        eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    leader = leader_of(cluster, workload.topic)
    workload.happened(f"cut etcd to {leader}")
    cluster.network.cut(ETCD, node(leader))
    eventually(partial(is_led_by_another, cluster, workload.topic, leader), DEADLINE_S)
    cluster.network.heal()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()


def test_etcd_is_away_for_longer_than_the_leases(cluster: Cluster, workload: Workload) -> None:
    """F12: no broker leads meanwhile, and all go on without a restart."""
    for seconds in (1.0, LEASE_S + 2.0):
        workload.happened(f"etcd is away for {seconds:g} s")
        cluster.etcd.kill()
        time.sleep(seconds)
        cluster.etcd.start()
        workload.goes_on()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()


def test_all_brokers_are_restarted_one_by_one(cluster: Cluster, workload: Workload) -> None:
    """No send fails: `goes_on` and `check` look for failures, too."""
    for node_id, broker in cluster.brokers.items():
        workload.happened(f"restart {node_id}")
        assert broker.stop() == 0
        workload.goes_on()
        broker.start()
        eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.goes_on()
    workload.check()


def test_a_broker_returns_with_an_empty_disk(cluster: Cluster, workload: Workload) -> None:
    """F33: it neither leads nor counts as in sync before it has everything; then another one may go."""
    leader = leader_of(cluster, workload.topic)
    broker = cluster.brokers[leader]
    workload.happened(f"kill {leader} and wipe its disk")
    broker.kill()
    shutil.rmtree(broker.data_dir)
    workload.goes_on()
    broker.start()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    second = others(cluster, leader)[0]
    workload.happened(f"kill {second}")
    cluster.brokers[second].kill()
    workload.goes_on()
    cluster.brokers[second].start()
    eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()


def test_coordinators_are_killed(cluster: Cluster, workload: Workload) -> None:
    """Of the groups and of the transactions: they move, with all that they know."""
    for topic in ("__consumer_offsets", "__transaction_state"):
        eventually(partial(cluster.is_in_sync, topic), DEADLINE_S)
        victim = leader_of(cluster, topic)
        workload.happened(f"kill {victim}, which leads {topic}-0")
        cluster.brokers[victim].kill()
        workload.goes_on()
        cluster.brokers[victim].start()
        eventually(partial(is_in_sync, cluster, workload), DEADLINE_S)
    workload.check()
