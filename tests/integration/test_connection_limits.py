"""How many connections, from where, and for how long in silence."""

from __future__ import annotations

import select
import time

from millrace.broker.network.memory import HELD_SHARE_BYTES
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.protocol import fetch_partition, fetch_request, topic_id
from tests.harness.raw import FETCH, METADATA, Closed, RawConnection
from tests.harness.topics import create_topic
from tests.integration.conftest import StartMillrace


def is_served(broker: MillraceProcess, source: str = "127.0.0.1") -> tuple[bool, RawConnection]:
    connection = RawConnection((source, broker.port))
    try:
        connection.call(METADATA, 1, {"topics": []})
    except (Closed, ConnectionError):
        return False, connection
    return True, connection


def test_connections_over_the_limit_wait_until_others_go(start_millrace: StartMillrace) -> None:
    broker = start_millrace({"max.connections": "5"})
    held = [is_served(broker) for _ in range(5)]
    assert all(served for served, _ in held)
    late = RawConnection((broker.host, broker.port))
    asked = late.send(METADATA, 1, {"topics": []})
    assert select.select([late.socket], [], [], 0.5)[0] == [], "nothing is read from it"
    # Those that are in keep working.
    assert held[0][1].call(METADATA, 1, {"topics": []})["brokers"]
    held.pop()[1].socket.close()
    assert late.receive(METADATA, 1, asked)["brokers"]
    for _, connection in held:
        connection.socket.close()
    late.socket.close()


def test_a_rate_of_connections_is_held_and_everybody_is_served(start_millrace: StartMillrace) -> None:
    broker = start_millrace({"max.connection.creation.rate": "5"})
    started = time.monotonic()
    # Fifty come at once, which ten seconds allow; the others as fast as they may.
    connections = [RawConnection((broker.host, broker.port)) for _ in range(60)]
    for connection in connections:
        connection.call(METADATA, 1, {"topics": []})
        connection.socket.close()
    assert time.monotonic() - started > 1.0


def test_one_address_may_hold_only_its_share(start_millrace: StartMillrace) -> None:
    broker = start_millrace(
        {"max.connections.per.ip": "3", "max.connections.per.ip.overrides": "127.0.0.9:100"}
    )
    held = [is_served(broker) for _ in range(3)]
    assert all(served for served, _ in held)
    served, connection = is_served(broker)
    connection.socket.close()
    assert not served
    for _, connection in held:
        connection.socket.close()


def test_silent_connections_are_closed_and_busy_ones_kept(start_millrace: StartMillrace) -> None:
    # Longer than a busy machine lets anybody wait between two requests.
    broker = start_millrace({"connections.max.idle.ms": "4000"})
    with (
        RawConnection((broker.host, broker.port)) as silent,
        RawConnection((broker.host, broker.port)) as busy,
    ):
        silent.call(METADATA, 1, {"topics": []})
        deadline = time.monotonic() + 60
        while not select.select([silent.socket], [], [], 0.2)[0]:
            assert time.monotonic() < deadline, "it stays open"
            busy.call(METADATA, 1, {"topics": []})
        assert silent.is_closed_by_peer()
        busy.call(METADATA, 1, {"topics": []})


def test_answers_behind_a_waiting_fetch_take_no_more_memory_than_their_share(
    start_millrace: StartMillrace,
) -> None:
    broker = start_millrace()
    create_topic(broker.bootstrap, "wide", partitions=1_000)

    def held_bytes() -> float:
        return _figure(broker, "millrace_held_answers_bytes")

    all_topics = {
        "topics": None,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    with RawConnection((broker.host, broker.port)) as connection:
        connection.send(METADATA, 8, all_topics)
        answer_bytes = len(connection.receive_frame())
        asked_count = 400
        assert asked_count * answer_bytes > 8 * HELD_SHARE_BYTES
        request = fetch_request({topic_id(connection, "wide"): [fetch_partition(0, 0)]}, max_wait=4_000)
        fetch = connection.send(FETCH, 13, request)
        for _ in range(asked_count):
            connection.send(METADATA, 8, all_topics)

        eventually(lambda: held_bytes() >= HELD_SHARE_BYTES)
        assert held_bytes() <= HELD_SHARE_BYTES + 2 * answer_bytes
        connection.receive(FETCH, 13, fetch)
        for _ in range(asked_count):
            assert len(connection.receive_frame()) == answer_bytes
        assert held_bytes() == 0


def _figure(broker: MillraceProcess, name: str) -> float:
    _, text = broker.http("/metrics")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])
