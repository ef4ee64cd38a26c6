"""The state of share partitions moves from Apache Kafka to Millrace and back, and Kafka's tool reads both.

Nothing of Millrace's own codecs takes part: both brokers are asked in Kafka's own messages. Only the one
field that Kafka does not have is written by our own."""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from millrace.wire import schema
from millrace.wire.messages import write_share_group_state
from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.millrace import MillraceProcess
from tests.harness.process import BrokerProcess
from tests.harness.protocol import topic_id
from tests.harness.raw import FIND_COORDINATOR, Plain, RawConnection
from tests.harness.topics import create_topic

pytestmark = [pytest.mark.java, pytest.mark.millrace_only, pytest.mark.slow]

INITIALIZE: Final = 83
READ: Final = 84
WRITE: Final = 85
DELETE: Final = 86
SUMMARY: Final = 87
SHARE: Final = 2
GROUP: Final = "workers:of:the:night"
"""Group ids may have colons."""
DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
SETTINGS: Final = {"share.coordinator.snapshot.update.records.per.snapshot": "3"}
SHARE_PARTITIONS: Final = 6
ERRORS: Final = (
    "none",
    "fenced_leader_epoch",
    "fenced_state_epoch",
    "invalid_request",
    "unknown_topic_or_partition",
)
"""All that the steps run into."""
HELD: Final = (900, 909, 0, 1)
Run = tuple[int, int, int, int]
"""First offset, last offset, state, delivery count."""


class Leader:
    """A leader of share partitions, as a broker's coordinator sees it."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._connection = RawConnection((broker.host, broker.port))
        self.topic_id = topic_id(self._connection, topic)
        self._states: dict[int, tuple[int, dict[int, int]]] = {}
        """By partition: where it begins, and the state of each offset that was written."""

    def close(self) -> None:
        self._connection.socket.close()

    def find(self, partition: int) -> None:
        """Wait until there is a coordinator."""
        encoded = base64.urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        key = f"{GROUP}:{encoded}:{partition}"
        end = time.monotonic() + 60
        while True:
            asked = {"key_type": SHARE, "coordinator_keys": [key]}
            (found,) = self._connection.call(FIND_COORDINATOR, 6, asked)["coordinators"]
            if found["error_code"] == "none":
                return
            assert time.monotonic() < end, found
            time.sleep(0.1)

    def ask(self, api_key: int, version: int, partition: int, **values: Any) -> Plain:
        """The result for one partition, as soon as the coordinator has loaded it."""
        end = time.monotonic() + 60
        part = {"partition": partition, **values}
        topics = [{"topic_id": self.topic_id, "partitions": [part]}]
        while True:
            answer = self._connection.call(api_key, version, {"group_id": GROUP, "topics": topics})
            result: Plain = answer["results"][0]["partitions"][0]
            if result["error_code"] not in ("coordinator_load_in_progress", "not_coordinator"):
                return result
            assert time.monotonic() < end, result
            time.sleep(0.05)

    def initialize(self, partition: int, state_epoch: int = 1, start_offset: int = 0) -> str:
        values = {"state_epoch": state_epoch, "start_offset": start_offset}
        error = str(self.ask(INITIALIZE, 0, partition, **values)["error_code"])
        if error == "none":
            self._states[partition] = (start_offset, {})
        return error

    def _written(self, partition: int, runs: Sequence[Run], start: int) -> tuple[int, dict[int, int]]:
        """What the partition is with these runs. Leaders tell how much of it is done, and tell the truth."""
        before, offsets = self._states.get(partition, (0, {}))
        after = {**offsets, **{at: state for first, last, state, _ in runs for at in range(first, last + 1)}}
        begin = before if start < 0 else start
        return begin, {at: state for at, state in after.items() if at >= begin}

    def write(self, partition: int, *runs: Run, start: int = -1, leader: int = 0, epoch: int = 1) -> str:
        after = self._written(partition, runs, start)
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        result = self.ask(
            WRITE,
            1,
            partition,
            state_epoch=epoch,
            leader_epoch=leader,
            start_offset=start,
            delivery_complete_count=_done_count(after),
            state_batches=[dict(zip(names, run, strict=True)) for run in runs],
        )
        if result["error_code"] == "none":
            self._states[partition] = after
        return str(result["error_code"])

    def hold_back(self, partition: int, run: Run, not_before_ms: int) -> None:
        """Write a run with the field that Kafka's messages do not have."""
        first, last, state, count = run
        batch = write_share_group_state.StateBatch(
            first_offset=first,
            last_offset=last,
            delivery_state=state,
            delivery_count=count,
            not_before_ms=not_before_ms,
        )
        part = write_share_group_state.PartitionData(
            partition=partition,
            state_epoch=-1,
            leader_epoch=-1,
            start_offset=-1,
            delivery_complete_count=_done_count(self._written(partition, [run], -1)),
            state_batches=[batch],
        )
        topics = [write_share_group_state.WriteStateData(topic_id=self.topic_id.bytes, partitions=[part])]
        request = write_share_group_state.WriteShareGroupStateRequest(group_id=GROUP, topics=topics)
        header = struct.pack(">hhih3sb", WRITE, 1, 1_000_000, 3, b"raw", 0)
        self._connection.send_frame(header + schema.request_encoder(WRITE, 1)(request))
        answer = self._connection.receive(WRITE, 1, 1_000_000)
        assert answer["results"][0]["partitions"][0]["error_code"] == "none"

    def state(self, partition: int) -> tuple[object, ...]:
        """All that can be read, without the words of errors."""
        read = self.ask(READ, 0, partition, leader_epoch=-1)
        runs = [tuple(batch.values()) for batch in read["state_batches"]]
        summary = self.ask(SUMMARY, 1, partition, leader_epoch=-1)
        names = ("error_code", "state_epoch", "start_offset")
        counted = (summary["start_offset"], summary["state_epoch"], summary["delivery_complete_count"])
        return (*(read[name] for name in names), tuple(runs), *counted)


def _done_count(state: tuple[int, dict[int, int]]) -> int:
    return sum(each in (2, 4) for each in state[1].values())


def play(leader: Leader, base: int) -> list[str]:
    """What several share partitions go through; the errors of every step."""
    steps = [leader.initialize(partition, base, 10 * base) for partition in range(SHARE_PARTITIONS - 1)]
    at = 10 * base
    for number in range(9):
        # Enough for updates and for snapshots, on the same offsets and on others, and with a moving start.
        run = (at + number, at + number + 1, 0 if number % 4 == 3 else 2, number + 1)
        steps.append(leader.write(0, run, start=at + number // 2, epoch=base))
    steps.append(leader.write(1, (at, at + 99, 0, 1), (at + 50, at + 59, 2, 2), epoch=base))
    steps.append(leader.write(2, (at + 5, at + 5, 4, 5), leader=base, epoch=base))
    steps.append(leader.ask(READ, 0, 2, leader_epoch=base + 1)["error_code"])
    steps.append(leader.write(2, (at + 6, at + 6, 2, 1), leader=base, epoch=base))
    steps.append(leader.write(2, (at + 7, at + 7, 2, 1), leader=base + 1, epoch=base))
    steps.append(leader.write(3, (at, at, 2, 1), epoch=base - 1))
    steps.append(leader.initialize(3, base - 1))
    steps.append(leader.initialize(3, base + 1, 500))
    steps.append(leader.ask(DELETE, 0, 4)["error_code"])
    steps.append(leader.write(4, (at, at, 2, 1), epoch=base))
    # One that nobody has initialized, one that does not exist, and one that cannot.
    steps.append(leader.write(5, (at, at, 2, 1), epoch=base))
    steps.append(leader.initialize(SHARE_PARTITIONS))
    steps.append(leader.initialize(-1))
    steps.append(leader.ask(READ, 0, -1, leader_epoch=0)["error_code"])
    steps.append(leader.ask(SUMMARY, 1, SHARE_PARTITIONS, leader_epoch=0)["error_code"])
    return steps


def states(leader: Leader) -> list[tuple[object, ...]]:
    return [leader.state(partition) for partition in range(SHARE_PARTITIONS)]


def with_run(state: tuple[Any, ...], run: Run) -> tuple[object, ...]:
    """The state with one more run at its end."""
    return (*state[:3], (*state[3], run), *state[4:])


def dumped(java: JavaHost, broker: BrokerProcess) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values of the state topic, as Kafka's tool decodes them."""
    files = sorted(
        str(path)
        for directory in broker.data_dir.glob("__share_group_state-*")
        for path in Path(directory).glob("*.log")
        if path.stat().st_size
    )
    answer = java.tool(DUMP, ["--share-group-state-decoder", "--files", ",".join(files)])
    assert answer["status"] == 0, answer["stderr"]
    found = []
    for line in answer["stdout"].splitlines():
        if " key: {" not in line:
            continue
        key, value = re.split(r" payload: ", line.split(" key: ", 1)[1], maxsplit=1)
        found.append((json.loads(key), json.loads(value) if value.startswith("{") else None))
    return found


@pytest.fixture
def running() -> Iterator[list[BrokerProcess]]:
    brokers: list[BrokerProcess] = []
    yield brokers
    for broker in brokers:
        broker.end()


def test_share_state_moves_from_kafka_to_millrace_and_back(
    tmp_path: Path, java: JavaHost, running: list[BrokerProcess]
) -> None:
    directory = tmp_path / "shared"
    kafka = KafkaProcess(directory, SETTINGS)
    running.append(kafka)
    kafka.start()
    topic = create_topic(kafka.bootstrap, "orders", partitions=SHARE_PARTITIONS)
    leader = Leader(kafka, topic)
    leader.find(0)
    steps_of_kafka = play(leader, 2)
    assert dict.fromkeys(steps_of_kafka).keys() == dict.fromkeys(ERRORS).keys()
    states_of_kafka = states(leader)
    leader.close()
    kafka.stop()

    millrace = MillraceProcess(directory, SETTINGS)
    running.append(millrace)
    millrace.start()
    leader = Leader(millrace, topic)
    leader.find(0)
    assert states(leader) == states_of_kafka
    # The same steps on state that begins anew have the same errors and lead to the same state.
    steps_of_millrace = play(leader, 5)
    assert steps_of_millrace == steps_of_kafka
    states_of_millrace = states(leader)
    # Behind the others: kio cannot read an answer with a field that it does not know, as Kafka's readers can.
    leader.hold_back(1, HELD, not_before_ms=1_900_000_000_000)
    states_of_millrace[1] = with_run(states_of_millrace[1], HELD)
    leader.close()
    assert millrace.stop() == 0

    records = dumped(java, millrace)
    kinds = {key["type"] for key, _ in records}
    assert kinds == {"0", "1"}
    assert {key["data"]["groupId"] for key, _ in records} == {GROUP}
    assert None in [value for _, value in records], "a tombstone"
    newest = [value for key, value in records if key["data"]["partition"] == 3][-1]
    assert newest is not None
    assert (newest["data"]["startOffset"], newest["data"]["stateEpoch"]) == (500, 6)
    last = [value for key, value in records if key["data"]["partition"] == 1][-1]
    assert last is not None
    held = {"firstOffset": 900, "lastOffset": 909, "deliveryState": 0, "deliveryCount": 1}
    assert held in last["data"]["stateBatches"], "the tool skips what it does not know"

    kafka.start()
    leader = Leader(kafka, topic)
    leader.find(0)
    assert states(leader) == states_of_millrace
    leader.close()
    kafka.stop()
