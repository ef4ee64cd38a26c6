"""What the command line asks about share groups, and what it makes of the answers."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.group import share_groups
from millrace.cli.group.share_groups import Progress
from millrace.cli.options import BrokerAddress
from millrace.client.errors import UnsupportedBroker
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_share_group_offsets as altering
from millrace.wire.messages import delete_share_group_offsets as deleting
from millrace.wire.messages import describe_share_group_offsets as offsets
from millrace.wire.messages import share_group_describe as described

ADDRESS = BrokerAddress(bootstrap="h:1", command_config=None, timeout_s=1)


class Client:
    """Stands in for connections: two brokers, of which the second coordinates everything."""

    def __init__(self) -> None:
        self.answers: dict[ApiKey, Any] = {}
        self.asked: list[tuple[ApiKey, int, Any, int]] = []
        self.knows_shares = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def nodes(self) -> dict[int, tuple[str, int]]:
        return {1: ("h", 1), 2: ("h", 2)}

    def coordinator(self, _key: str) -> int:
        return 2

    def version(self, api_key: ApiKey, _low: int, high: int, _node_id: int) -> int:
        if not self.knows_shares:
            raise UnsupportedBroker(f"no {api_key.name}")
        return high

    def request(self, api_key: ApiKey, version: int, message: Any, node_id: int) -> Any:
        self.asked.append((api_key, version, message, node_id))
        return self.answers[api_key]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(share_groups, "BrokerClient", lambda *_, **__: client)
    return client


def test_a_group_is_found_where_it_is_coordinated(client: Client) -> None:
    group = described.DescribedGroup(group_id="g", group_state="Stable", assignor_name="simple")
    client.answers[ApiKey.SHARE_GROUP_DESCRIBE] = described.ShareGroupDescribeResponse(groups=[group])
    found = share_groups.find(ADDRESS, "g")
    assert found is not None
    assert (found.state, found.coordinator_id, found.coordinator) == ("Stable", 2, ("h", 2))
    group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
    assert share_groups.find(ADDRESS, "g") is None
    group.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(RequestFailed, match="GROUP_AUTHORIZATION_FAILED"):
        share_groups.find(ADDRESS, "g")
    client.knows_shares = False
    assert share_groups.find(ADDRESS, "g") is None


def test_what_nobody_knows_yet_is_left_open(client: Client) -> None:
    partition = offsets.DescribeShareGroupOffsetsResponsePartition
    topic = offsets.DescribeShareGroupOffsetsResponseTopic(
        topic_name="t",
        partitions=[
            partition(partition_index=0, start_offset=3, lag=4),
            partition(partition_index=1, start_offset=-1, lag=-1),
        ],
    )
    group = offsets.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])
    client.answers[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = offsets.DescribeShareGroupOffsetsResponse(
        groups=[group]
    )
    assert share_groups.progress(ADDRESS, "g") == {("t", 0): Progress(3, 4), ("t", 1): Progress(None, None)}


def test_offsets_are_altered_by_topics_and_refusals_are_named(client: Client) -> None:
    partition = altering.AlterShareGroupOffsetsResponsePartition(partition_index=1)
    topic = altering.AlterShareGroupOffsetsResponseTopic(topic_name="t", partitions=[partition])
    client.answers[ApiKey.ALTER_SHARE_GROUP_OFFSETS] = altering.AlterShareGroupOffsetsResponse(
        responses=[topic]
    )
    share_groups.alter(ADDRESS, "g", {("t", 0): 4, ("t", 1): 5})
    ((_, _, request, node_id),) = client.asked
    (asked,) = request.topics
    assert [(each.partition_index, each.start_offset) for each in asked.partitions] == [(0, 4), (1, 5)]
    assert (request.group_id, node_id) == ("g", 2)
    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(RequestFailed, match="t:1: "):
        share_groups.alter(ADDRESS, "g", {("t", 1): 5})


def test_offsets_are_deleted_by_topics(client: Client) -> None:
    told = deleting.DeleteShareGroupOffsetsResponseTopic
    client.answers[ApiKey.DELETE_SHARE_GROUP_OFFSETS] = deleting.DeleteShareGroupOffsetsResponse(
        responses=[
            told(topic_name="t"),
            told(
                topic_name="u",
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="nothing is there",
            ),
        ]
    )
    assert share_groups.delete_offsets(ADDRESS, "g", ["t", "u"]) == {"t": None, "u": "nothing is there"}
