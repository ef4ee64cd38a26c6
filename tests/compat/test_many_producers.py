"""Many producers at once on raw connections: each answer tells the truth, in order, with no record twice.

A broker may write what arrives at the same moment together; nobody may notice.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from millrace.wire.records import read_records, split_batches
from tests.harness.batches import batch
from tests.harness.process import BrokerProcess
from tests.harness.protocol import PRODUCE_VERSION, fetch_records, list_offset, produce_request
from tests.harness.raw import PRODUCE, RawConnection
from tests.harness.topics import create_topic, unique_name

CONNECTIONS = 40
ROUNDS = 25
IN_FLIGHT = 3


@pytest.mark.parametrize("producer_ids", [False, True])
def test_every_answer_names_the_offset_of_its_own_record(broker: BrokerProcess, producer_ids: bool) -> None:
    topic = create_topic(broker.bootstrap, unique_name("crowd"))
    told: dict[bytes, int] = {}
    with ExitStack() as stack:
        connections = [
            stack.enter_context(RawConnection((broker.host, broker.port))) for _ in range(CONNECTIONS)
        ]
        for round_number in range(ROUNDS):
            sent = []
            # All send before anybody reads, so that the broker finds many requests at once.
            for number, connection in enumerate(connections):
                for turn in range(IN_FLIGHT):
                    sequence = round_number * IN_FLIGHT + turn
                    value = b"%d-%d" % (number, sequence)
                    # Large ones among the small, which are written at once.
                    padding = bytes(20_000) if sequence % 17 == number % 17 else b""
                    producer = (5_000 + number, 0, sequence) if producer_ids else (-1, -1, -1)
                    records = batch([value + b":" + padding], producer=producer)
                    request = produce_request({(topic, 0): records})
                    sent.append((connection, value, connection.send(PRODUCE, PRODUCE_VERSION, request)))
            for connection, value, correlation_id in sent:
                answer = connection.receive(PRODUCE, PRODUCE_VERSION, correlation_id)
                (result,) = answer["responses"][0]["partition_responses"]
                assert result["error_code"] == "none", result
                told[value] = result["base_offset"]
        connection = connections[0]
        end = int(list_offset(connection, topic, -1)["offset"])
        assert end == CONNECTIONS * ROUNDS * IN_FLIGHT
        found: dict[bytes, int] = {}
        position = 0
        while position < end:
            for data in split_batches(memoryview(fetch_records(connection, topic, 0, position))):
                for record in read_records(data):
                    assert record.value is not None
                    found[record.value.partition(b":")[0]] = record.offset
                    position = record.offset + 1
    assert found == told
    for number in range(CONNECTIONS):
        offsets = [told[b"%d-%d" % (number, sequence)] for sequence in range(ROUNDS * IN_FLIGHT)]
        assert offsets == sorted(offsets)


def test_a_bad_batch_among_good_ones_is_refused_alone(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("crowd-bad"))
    outcomes: list[str] = []
    with ExitStack() as stack:
        connections = [
            stack.enter_context(RawConnection((broker.host, broker.port))) for _ in range(CONNECTIONS)
        ]
        for _ in range(4):
            sent = []
            for number, connection in enumerate(connections):
                records = bytearray(batch([b"%d" % number]))
                if number % 5 == 0:
                    records[-1] ^= 1
                request = produce_request({(topic, 0): bytes(records)})
                sent.append((connection, connection.send(PRODUCE, PRODUCE_VERSION, request)))
            for connection, correlation_id in sent:
                answer = connection.receive(PRODUCE, PRODUCE_VERSION, correlation_id)
                outcomes.append(answer["responses"][0]["partition_responses"][0]["error_code"])
        end = int(list_offset(connections[0], topic, -1)["offset"])
    assert outcomes.count("corrupt_message") == 4 * CONNECTIONS // 5
    assert outcomes.count("none") == end == 4 * CONNECTIONS * 4 // 5
