"""Acknowledgements that no client would send: Kafka's errors for all of them, at no cost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from tests.compat.queues.share_groups import send, set_group
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess, eventually
from tests.harness.protocol import topic_id
from tests.harness.raw import FIND_COORDINATOR, RawConnection
from tests.harness.topics import create_topic, unique_name

HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 78, 79
RECORDS: Final = 10
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
FAR: Final = 1 << 62
BOUND_S: Final = 2.0
REFUSED: Final = ("invalid_request", "invalid_record_state")

Batch = tuple[int, int, Sequence[int]]


class RawMember:
    """A member of a share group that says what it is told to say."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str) -> None:
        self.group = group
        self.member_id = str(uuid.uuid4())
        self._connection = RawConnection((broker.host, broker.port))
        self._topic_id = topic_id(self._connection, topic)
        self._topic = topic
        self._epoch = 0
        self._member_epoch = 0
        eventually(self._is_found)
        eventually(self._has_partition, 30)

    def close(self) -> None:
        self._connection.__exit__()

    def _is_found(self) -> bool:
        asked = {"key_type": 0, "coordinator_keys": [self.group]}
        (found,) = self._connection.call(FIND_COORDINATOR, 6, asked)["coordinators"]
        return bool(found["error_code"] == "none")

    def _has_partition(self) -> bool:
        answer = self._connection.call(
            HEARTBEAT,
            1,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": self._member_epoch,
                "rack_id": None,
                "subscribed_topic_names": [self._topic] if self._member_epoch == 0 else None,
            },
        )
        if answer["error_code"] != "none":
            assert answer["error_code"].startswith(("coordinator_", "not_coordinator")), answer
            return False
        self._member_epoch = answer["member_epoch"]
        return bool(answer["assignment"] and answer["assignment"]["topic_partitions"])

    def take(self) -> list[tuple[int, int, int]]:
        """What there is for it within a second."""
        answer = self._connection.call(
            SHARE_FETCH,
            2,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": self._epoch,
                "max_wait": 1_000,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": 500,
                "batch_size": 500,
                "share_acquire_mode": 0,
                "is_renew_ack": False,
                "topics": self._named([]) if self._epoch == 0 else [],
                "forgotten_topics_data": [],
            },
        )
        assert answer["error_code"] == "none", answer
        self._epoch += 1
        return [
            (run["first_offset"], run["last_offset"], run["delivery_count"])
            for topic in answer["responses"]
            for partition in topic["partitions"]
            for run in partition["acquired_records"]
        ]

    def say(self, *batches: Batch, is_renewal: bool = False) -> str:
        """The error of the partition."""
        sent = self._connection.send(
            SHARE_ACKNOWLEDGE,
            2,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": self._epoch,
                "is_renew_ack": is_renewal,
                "topics": self._named(batches),
            },
        )
        begun = time.monotonic()
        answer = self._connection.receive(SHARE_ACKNOWLEDGE, 2, sent)
        assert time.monotonic() - begun < BOUND_S
        assert answer["error_code"] == "none", answer
        self._epoch += 1
        return str(answer["responses"][0]["partitions"][0]["error_code"])

    def _named(self, batches: Sequence[Batch]) -> list[dict[str, Any]]:
        acks = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, types in batches
        ]
        return [
            {
                "topic_id": self._topic_id,
                "partitions": [{"partition_index": 0, "acknowledgement_batches": acks}],
            }
        ]


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker({"auto.create.topics.enable": "false"})


@pytest.fixture
def members(broker: BrokerProcess) -> Iterator[tuple[RawMember, RawMember]]:
    """One that holds ten records, and one that holds none."""
    group, topic = unique_name("workers"), unique_name("jobs")
    set_group(broker, group, share__auto__offset__reset="earliest")
    create_topic(broker.bootstrap, topic)
    send(broker, topic, *(str(number) for number in range(RECORDS)))
    first, other = RawMember(broker, group, topic), RawMember(broker, group, topic)
    taken: list[tuple[int, int, int]] = []
    while not taken or taken[-1][1] < RECORDS - 1:
        taken += first.take()
    assert other.take() == []
    yield first, other
    first.close()
    other.close()


MALFORMED: Final[dict[str, Sequence[Batch]]] = {
    "first behind last": [(5, 4, [ACCEPT])],
    "overlapping": [(0, 6, [ACCEPT]), (5, 9, [ACCEPT])],
    "the same twice": [(0, 9, [ACCEPT]), (0, 9, [ACCEPT])],
    "wrong order": [(5, 9, [ACCEPT]), (0, 4, [ACCEPT])],
    "no types": [(0, 9, [])],
    "too few types": [(0, 9, [ACCEPT] * 9)],
    "too many types": [(0, 9, [ACCEPT] * 11)],
    "no such type": [(0, 9, [5])],
    "a negative type": [(0, 9, [-1])],
    "one wrong type of many": [(0, 9, [ACCEPT] * 9 + [17])],
    "renewal unannounced": [(0, 9, [RENEW])],
    "overlapping far away": [(0, FAR, [ACCEPT]), (FAR, FAR + 1, [ACCEPT])],
    "types for a range without end": [(0, FAR, [ACCEPT, RELEASE])],
}


def test_what_is_malformed_is_refused_and_changes_nothing(members: tuple[RawMember, RawMember]) -> None:
    holder, _ = members
    answers = {name: holder.say(*batches) for name, batches in MALFORMED.items()}
    assert answers == dict.fromkeys(MALFORMED, "invalid_request")
    # Kafka finds an overlap of one record only when it comes to that record.
    assert holder.say((0, 5, [ACCEPT]), (5, 9, [ACCEPT])) in REFUSED
    assert holder.say((0, RECORDS - 1, [ACCEPT])) == "none", "they are still its own"


def test_nobody_speaks_for_another(members: tuple[RawMember, RawMember]) -> None:
    holder, other = members
    for kind in (GAP, ACCEPT, RELEASE, REJECT):
        assert other.say((0, RECORDS - 1, [kind])) == "invalid_record_state", kind
        assert other.say((3, 3, [kind])) == "invalid_record_state", kind
    assert holder.say((0, RECORDS - 1, [ACCEPT])) == "none"
    assert other.take() == []


def test_what_was_never_delivered_cannot_be_acknowledged(members: tuple[RawMember, RawMember]) -> None:
    holder, _ = members
    for kind in (GAP, ACCEPT, RELEASE, REJECT):
        for first, last in ((0, RECORDS), (0, FAR), (RECORDS, FAR), (FAR, FAR), (FAR, FAR + 9)):
            assert holder.say((first, last, [kind])) in REFUSED, (kind, first, last)
    assert holder.say((0, RECORDS - 1, [ACCEPT])) == "none"


def test_all_of_it_counts_or_nothing(members: tuple[RawMember, RawMember]) -> None:
    holder, other = members
    assert holder.say((0, 1, [ACCEPT]), (3, 3, [RELEASE]), (5, 20, [ACCEPT])) != "none"
    assert holder.say((0, 4, [ACCEPT, REJECT, 0, RELEASE, ACCEPT])) == "none"
    assert other.take() == [(3, 3, 2)]
    assert holder.say((3, 3, [ACCEPT])) == "invalid_record_state", "it is another's now"
    assert holder.say((0, 1, [ACCEPT])) in ("none", "invalid_record_state"), "it is done"
    assert holder.say((5, 9, [RENEW]), is_renewal=True) == "none"
    assert holder.say((5, 9, [ACCEPT])) == "none"
    assert other.say((3, 3, [ACCEPT])) == "none"


def test_many_acknowledgements_in_one_request(members: tuple[RawMember, RawMember]) -> None:
    """Each of them well-formed, of records that are nowhere."""
    holder, _ = members
    many = [(FAR + 2 * number, FAR + 2 * number, [ACCEPT]) for number in range(50_000)]
    assert holder.say(*many) in REFUSED
    assert holder.say((0, 1_999_999, [ACCEPT] * 2_000_000)) in REFUSED
    assert holder.say((0, RECORDS - 1, [ACCEPT])) == "none"
