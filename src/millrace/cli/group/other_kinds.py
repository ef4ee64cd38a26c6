"""Share and streams groups, which librdkafka does not list: asked for over a connection of our own."""

from __future__ import annotations

from typing import Final

from millrace.cli.broker_requests import connected, raise_for
from millrace.cli.data_directories import broker_addresses, broker_connection
from millrace.cli.group.state import GroupListing
from millrace.cli.options import BrokerAddress
from millrace.client.errors import ConnectionClosed
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.list_groups import ListGroupsRequest

KINDS: Final = ("share", "streams")
LIST_VERSION: Final = 5


def list_others(address: BrokerAddress) -> list[GroupListing]:
    """The groups of these kinds on all brokers; none where brokers are too old to have any."""
    with connected(address) as connection:
        brokers = broker_addresses(connection)
    found: list[GroupListing] = []
    for node_id in sorted(brokers):
        with broker_connection(brokers[node_id], address) as connection:
            try:
                answer = connection.ask(
                    ApiKey.LIST_GROUPS, LIST_VERSION, ListGroupsRequest(types_filter=list(KINDS))
                )
            except ConnectionClosed:
                # Brokers before Kafka 3.8 do not know the types of groups.
                continue
        raise_for(answer.error_code, f"the groups of broker {node_id}")
        found += [
            GroupListing(group=each.group_id, state=each.group_state, type=each.group_type.lower())
            for each in answer.groups
        ]
    return found
