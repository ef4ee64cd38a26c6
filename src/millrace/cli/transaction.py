"""`millrace transaction`: list, describe and abort transactions, and find those that nobody will ever end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import BrokerAddress, broker_options, json_option
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millrace.cli.broker_requests import Connection

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group(help="List, describe and abort transactions, and find those that hang.", no_args_is_help=True)
def transaction() -> None:
    pass


COMMAND: Final = transaction


@transaction.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these states. Repeatable.")
@click.option(
    "--longer-than", "duration_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Only older ones."
)
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that match as a whole.")
@json_option
@broker_options
def list_(
    states: tuple[str, ...], duration_s: float | None, pattern: str | None, as_json: bool, **address: Any
) -> None:
    """List transactional ids and the states of their transactions."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.list_transactions import ListTransactionsRequest

    request = ListTransactionsRequest(
        state_filters=list(states),
        duration_filter=-1 if duration_s is None else int(duration_s * 1000),
        transactional_id_pattern=pattern,
    )
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        answer = broker.ask(ApiKey.LIST_TRANSACTIONS, 2, request)
    broker_requests.raise_for(answer.error_code, "transactions")
    if answer.unknown_state_filters:
        raise click.BadParameter(
            f"no state is called {', '.join(answer.unknown_state_filters)}", param_hint="'--state'"
        )
    found = sorted(answer.transaction_states, key=lambda each: str(each.transactional_id))
    if as_json:
        for each in found:
            print_json(
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "state": each.transaction_state,
                }
            )
        return
    rows = [(each.transactional_id, each.producer_id, each.transaction_state) for each in found]
    print_table(("TRANSACTIONAL ID", "PRODUCER ID", "STATE"), rows, right=("PRODUCER ID",))


@transaction.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@json_option
@broker_options
def describe(names: tuple[str, ...], as_json: bool, **address: Any) -> None:
    """Show a transaction: its producer, how long it is open, and its partitions."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.describe_transactions import DescribeTransactionsRequest

    with broker_requests.connected(BrokerAddress(**address)) as broker:
        request = DescribeTransactionsRequest(transactional_ids=list(names))
        answer = broker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    now_ms = int(time.time() * 1000)
    for each in answer.transaction_states:
        broker_requests.raise_for(each.error_code, each.transactional_id)
        started_ms = each.transaction_start_time_ms
        document = {
            "transactional_id": each.transactional_id,
            "state": each.transaction_state,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "timeout_ms": each.transaction_timeout_ms,
            "open_ms": now_ms - started_ms if started_ms >= 0 else None,
            "partitions": [f"{topic.topic}-{index}" for topic in each.topics for index in topic.partitions],
        }
        if as_json:
            print_json(document)
            continue
        click.echo(f"Transactional id:  {document['transactional_id']}")
        click.echo(f"State:             {document['state']}")
        click.echo(f"Producer:          {document['producer_id']}, epoch {document['producer_epoch']}")
        click.echo(f"Time-out:          {document['timeout_ms']} ms")
        if document["open_ms"] is not None:
            click.echo(f"Open for:          {document['open_ms']} ms")
            click.echo(f"Partitions:        {', '.join(document['partitions']) or 'none'}")


@transaction.command()
@click.option("--topic", required=True, help="The topic of the open transaction.")
@click.option("--partition", required=True, type=click.IntRange(min=0), help="Its partition.")
@click.option(
    "--start-offset",
    required=True,
    type=click.IntRange(min=0),
    help="Where the transaction begins, as find-hanging shows it.",
)
@broker_options
def abort(topic: str, partition: int, start_offset: int, **address: Any) -> None:
    """End a transaction in one partition, so that readers of committed records can go on.

    This is for transactions that hang. One that is open and well is better ended by its producer, or by a new
    producer with the same transactional id."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    subject = f"{topic}-{partition}"
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        producers = dict(_open_producers(broker, {topic: [partition]}))[topic, partition]
        producer = next((each for each in producers if each.current_txn_start_offset == start_offset), None)
        if producer is None:
            raise click.ClickException(f"{subject}: no transaction begins at offset {start_offset}")
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        )
        answer = broker.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
    broker_requests.raise_for(answer.markers[0].topics[0].partitions[0].error_code, subject)
    click.echo(f"aborted the transaction of producer {producer.producer_id} in {subject}")


@transaction.command("find-hanging")
@click.option("--topic", "only", metavar="TOPIC", help="Look at this topic only.")
@click.option(
    "--max-transaction-timeout",
    "timeout_minutes",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    metavar="MINUTES",
    help="The longest time-out of a transaction here; younger ones are left out.",
)
@json_option
@broker_options
def find_hanging(only: str | None, timeout_minutes: float, as_json: bool, **address: Any) -> None:
    """Find transactions that are open in a partition while no coordinator knows of them."""
    from millrace.cli import broker_requests

    oldest_ms = int((time.time() - timeout_minutes * 60) * 1000)
    with broker_requests.connected(BrokerAddress(**address)) as broker:
        places = _partitions(broker, only)
        known = _known_partitions(broker)
        found = [
            (topic, index, each)
            for (topic, index), producers in _open_producers(broker, places)
            for each in producers
            if each.last_timestamp <= oldest_ms and (each.producer_id, topic, index) not in known
        ]
    if as_json:
        for topic, index, each in found:
            print_json(
                {
                    "topic": topic,
                    "partition": index,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "start_offset": each.current_txn_start_offset,
                    "last_timestamp": each.last_timestamp,
                }
            )
        return
    rows = [
        (topic, index, each.producer_id, each.producer_epoch, each.current_txn_start_offset)
        for topic, index, each in found
    ]
    headings = ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET")
    print_table(headings, rows, right=headings[1:])


def _partitions(broker: Connection, only: str | None) -> dict[str, list[int]]:
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

    topics = None if only is None else [MetadataRequestTopic(name=only)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = broker.ask(ApiKey.METADATA, 9, request)
    places: dict[str, list[int]] = {}
    for topic in answer.topics:
        broker_requests.raise_for(topic.error_code, topic.name)
        places[topic.name] = sorted(each.partition_index for each in topic.partitions)
    return places


def _open_producers(
    broker: Connection, places: dict[str, list[int]]
) -> Iterator[tuple[tuple[str, int], list[Any]]]:
    """The producers that have a transaction open in each partition."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

    for name, indexes in places.items():
        request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=indexes)])
        answer = broker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)
        for each in answer.topics[0].partitions:
            broker_requests.raise_for(each.error_code, f"{name}-{each.partition_index}")
            producers = [one for one in each.active_producers if one.current_txn_start_offset >= 0]
            yield (name, each.partition_index), producers


def _known_partitions(broker: Connection) -> dict[tuple[int, str, int], None]:
    """(producer id, topic, partition) of all transactions that their coordinators are going to end."""
    from millrace.cli import broker_requests
    from millrace.wire.api_keys import ApiKey
    from millrace.wire.messages.describe_transactions import DescribeTransactionsRequest
    from millrace.wire.messages.list_transactions import ListTransactionsRequest

    listing = broker.ask(
        ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest(state_filters=list(_OPEN_STATES))
    )
    broker_requests.raise_for(listing.error_code, "transactions")
    names = [each.transactional_id for each in listing.transaction_states]
    answer = broker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=names))
    return {
        (each.producer_id, topic.topic, index): None
        for each in answer.transaction_states
        for topic in each.topics
        for index in topic.partitions
    }
