"""Kafka's own kafka-transactions, unchanged: its tables are compared with what the clients did."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.compat.transactions.conftest import Hosts, ProducerMaker
from tests.compat.transactions.hanging import PRODUCER_ID, append_hanging_transaction
from tests.compat.transactions.producers import Refused
from tests.compat.transactions.reading import COMMITTED, Partition, end_offsets, read_all, wait_until_stable
from tests.conftest import StartBroker
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name

MAIN: Final = "org.apache.kafka.tools.TransactionsCommand"
Row = dict[str, str]


class Tool:
    def __init__(self, java: JavaHost, bootstrap: str) -> None:
        self._java = java
        self._bootstrap = bootstrap

    def run(self, *words: str) -> str:
        answer = self._java.tool(MAIN, ["--bootstrap-server", self._bootstrap, *words])
        return str(answer["stdout"]) + str(answer["stderr"]) + (answer["thrown"] or "")

    def table(self, *words: str) -> list[Row]:
        """The rows that the tool printed, by heading; its columns are tabs apart."""
        lines = [re.split(r"\t+", line.strip()) for line in self.run(*words).splitlines() if line.strip()]
        heading, *rows = [[cell.strip() for cell in line] for line in lines]
        return [dict(zip(heading, row, strict=False)) for row in rows]


@pytest.fixture(scope="module")
def tool(java: JavaHost, broker: BrokerProcess) -> Tool:
    return Tool(java, broker.bootstrap)


@pytest.fixture
def where(make_producer: ProducerMaker) -> Partition:
    return create_topic(make_producer.bootstrap, unique_name("tool")), 0


def transaction_of(tool: Tool, ident: str) -> Row:
    (row,) = [row for row in tool.table("list") if row["TransactionalId"] == ident]
    return row


def test_transactions_are_listed_with_their_state(
    tool: Tool, make_producer: ProducerMaker, where: Partition
) -> None:
    idle, busy, done = (make_producer("librdkafka") for _ in range(3))
    busy.begin()
    busy.send((*where, "open"))
    busy.flush()
    done.write((*where, "done"))
    assert transaction_of(tool, idle.ident)["TransactionState"] == "Empty"
    assert transaction_of(tool, busy.ident)["TransactionState"] == "Ongoing"
    eventually(lambda: transaction_of(tool, done.ident)["TransactionState"] == "CompleteCommit")
    busy.abort()
    eventually(lambda: transaction_of(tool, busy.ident)["TransactionState"] == "CompleteAbort")


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_a_transaction_is_described(
    tool: Tool, make_producer: ProducerMaker, where: Partition, client: str
) -> None:
    producer = make_producer(client, timeout_ms=45_000)
    (row,) = tool.table("describe", "--transactional-id", producer.ident)
    assert (row["TransactionState"], row["TransactionTimeoutMs"]) == ("Empty", "45000")
    producer.begin()
    producer.send((*where, "open"))
    producer.flush()
    (row,) = tool.table("describe", "--transactional-id", producer.ident)
    assert row["TransactionState"] == "Ongoing"
    assert row["TopicPartitions"] == f"{where[0]}-0"
    assert int(row["TransactionDurationMs"]) >= 0
    assert row["ProducerId"] == transaction_of(tool, producer.ident)["ProducerId"]
    producer.commit()


def test_an_unknown_transactional_id_is_named_as_such(tool: Tool) -> None:
    output = tool.run("describe", "--transactional-id", unique_name("nobody"))
    assert "the ID could not be found" in output


def test_producers_of_a_partition_are_described(
    tool: Tool, make_producer: ProducerMaker, where: Partition
) -> None:
    idle, busy = make_producer("java"), make_producer("librdkafka")
    idle.write((*where, "done"))
    wait_until_stable(make_producer.bootstrap, [where])
    busy.begin()
    busy.send((*where, "open"), (*where, "open"))
    busy.flush()
    scope = ("describe-producers", "--topic", where[0], "--partition", "0")
    rows = {row["ProducerId"]: row for row in tool.table(*scope)}
    open_row = rows[transaction_of(tool, busy.ident)["ProducerId"]]
    closed_row = rows[transaction_of(tool, idle.ident)["ProducerId"]]
    assert open_row["CurrentTransactionStartOffset"] == "2"
    assert open_row["LastSequence"] == "1"
    assert closed_row["CurrentTransactionStartOffset"] == "None"
    busy.abort()


def test_an_open_transaction_is_aborted_by_hand(
    tool: Tool, make_producer: ProducerMaker, where: Partition
) -> None:
    producer, bootstrap = make_producer("librdkafka"), make_producer.bootstrap
    producer.begin()
    producer.send((*where, "stuck"))
    producer.flush()
    output = tool.run("abort", "--topic", where[0], "--partition", "0", "--start-offset", "0")
    assert "Exception" not in output, output
    wait_until_stable(bootstrap, [where], 30.0)
    assert read_all(bootstrap, [where]) == {where: []}
    assert end_offsets(bootstrap, [where], COMMITTED) == {where: 2}


def test_healthy_open_transactions_do_not_hang(
    tool: Tool, make_producer: ProducerMaker, where: Partition
) -> None:
    producer = make_producer("librdkafka")
    producer.begin()
    producer.send((*where, "open"))
    producer.flush()
    assert tool.table("find-hanging", "--broker-id", broker_id(tool)) == []
    producer.abort()


def broker_id(tool: Tool) -> str:
    """Of the coordinator of any transaction: there is one broker."""
    return tool.table("list")[0]["Coordinator"]


def test_a_hanging_transaction_is_found_and_aborted(
    java: JavaHost, start_broker: StartBroker, settings: dict[str, str], hosts: Hosts
) -> None:
    broker = start_broker(settings)
    tool, make = Tool(java, broker.bootstrap), ProducerMaker(hosts, broker.bootstrap)
    topic = create_topic(broker.bootstrap, unique_name("hanging"))
    where = (topic, 0)
    make("librdkafka").write((*where, "before"))
    wait_until_stable(broker.bootstrap, [where])
    broker.kill()
    append_hanging_transaction(broker.data_dir / f"{topic}-0", offset=2)
    broker.start()
    assert end_offsets(broker.bootstrap, [where], COMMITTED) == {where: 2}
    rows: list[Any] = tool.table("find-hanging", "--broker-id", broker_id(tool))
    (row,) = rows
    assert (row["Topic"], row["Partition"], row["ProducerId"]) == (topic, "0", str(PRODUCER_ID))
    assert (row["StartOffset"], row["ProducerEpoch"]) == ("2", "3")
    output = tool.run("abort", "--topic", topic, "--partition", "0", "--start-offset", "2")
    assert "Exception" not in output, output
    wait_until_stable(broker.bootstrap, [where], 30.0)
    assert read_all(broker.bootstrap, [where]) == {where: ["before"]}
    make("librdkafka").write((*where, "after"))
    make.end()


def test_a_client_whose_transaction_was_aborted_by_hand_cannot_commit_it(
    tool: Tool, make_producer: ProducerMaker, where: Partition
) -> None:
    """The tool leaves the coordinator alone: what follows must still not be half a commit."""
    producer, bootstrap = make_producer("java"), make_producer.bootstrap
    producer.begin()
    producer.send((*where, "first"))
    producer.flush()
    tool.run("abort", "--topic", where[0], "--partition", "0", "--start-offset", "0")
    wait_until_stable(bootstrap, [where], 30.0)
    try:
        producer.commit()
    except Refused:
        make_producer("java", producer.ident)
    assert "first" not in read_all(bootstrap, [where])[where]
