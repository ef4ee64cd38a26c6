"""`millrace transaction` as people use it, against a running broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compat.transactions.conftest import Hosts, ProducerMaker
from tests.compat.transactions.hanging import EPOCH, PRODUCER_ID, append_hanging_transaction
from tests.compat.transactions.reading import Partition, read_all, wait_until_stable
from tests.conftest import StartBroker
from tests.harness.millrace import run_millrace
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name


class Command:
    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def ok(self, *words: str) -> str:
        answer = run_millrace("transaction", *words, "-b", self._broker.bootstrap)
        assert answer.returncode == 0, answer
        return answer.stdout

    def documents(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]


@pytest.fixture
def where(make_producer: ProducerMaker) -> Partition:
    return create_topic(make_producer.bootstrap, unique_name("command")), 0


def test_transactions_are_listed_and_described(
    broker: BrokerProcess, make_producer: ProducerMaker, where: Partition
) -> None:
    command, producer, idle = Command(broker), make_producer("librdkafka"), make_producer("java")
    producer.begin()
    producer.send((*where, "open"))
    producer.flush()
    listed = {each["transactional_id"]: each for each in command.documents("list")}
    assert (listed[producer.ident]["state"], listed[idle.ident]["state"]) == ("Ongoing", "Empty")
    ongoing = {each["transactional_id"] for each in command.documents("list", "--state", "Ongoing")}
    assert producer.ident in ongoing
    assert idle.ident not in ongoing
    (described,) = command.documents("describe", producer.ident)
    assert described["state"] == "Ongoing"
    assert where[0] in json.dumps(described)
    assert command.documents("find-hanging") == []
    unknown = run_millrace("transaction", "describe", unique_name("nobody"), "-b", broker.bootstrap)
    assert unknown.returncode == 1
    producer.abort()


def test_a_hanging_transaction_is_found_and_aborted(
    start_broker: StartBroker, settings: dict[str, str], hosts: Hosts
) -> None:
    broker = start_broker(settings)
    command, make = Command(broker), ProducerMaker(hosts, broker.bootstrap)
    where = create_topic(broker.bootstrap, unique_name("hanging")), 0
    make("librdkafka").write((*where, "before"))
    wait_until_stable(broker.bootstrap, [where])
    broker.kill()
    append_hanging_transaction(broker.data_dir / f"{where[0]}-0", offset=2)
    broker.start()
    (found,) = command.documents("find-hanging")
    assert (found["topic"], found["partition"], found["start_offset"]) == (*where, 2)
    assert (found["producer_id"], found["producer_epoch"]) == (PRODUCER_ID, EPOCH)
    command.ok("abort", "--topic", where[0], "--partition", "0", "--start-offset", "2")
    wait_until_stable(broker.bootstrap, [where], 30.0)
    assert command.documents("find-hanging") == []
    assert read_all(broker.bootstrap, [where]) == {where: ["before"]}
    make.end()
