"""ListGroups, DescribeGroups and DeleteGroups as clients of every version see them; the answers are those of
Kafka 4.3.1."""

from __future__ import annotations

import pytest

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_groups import DeleteGroupsRequest
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.groups.members import commit, member
from tests.unit.groups.worlds import subscription

ALL_GROUP_OPERATIONS = 3_400


@pytest.mark.parametrize("version", range(7))
def test_describing_groups(groups: Broker, version: int) -> None:
    member_id = member(groups)
    request = DescribeGroupsRequest(groups=["g", "absent"], include_authorized_operations=version >= 3)
    there, absent = groups.ask(request, version).groups
    assert (there.group_state, there.protocol_type, there.protocol_data) == ("Stable", "consumer", "range")
    (described,) = there.members
    assert (described.member_id, described.client_id, described.client_host) == (
        member_id,
        "test",
        "/client.test",
    )
    assert (described.member_metadata, described.member_assignment) == (subscription("t"), b"mine")
    assert absent.group_state == "Dead"
    if version >= 3:
        assert there.authorized_operations == ALL_GROUP_OPERATIONS
    if version >= 6:
        assert (absent.error_code, absent.error_message) == (69, "Group absent not found.")


@pytest.mark.parametrize("version", range(6))
def test_listing_groups(groups: Broker, version: int) -> None:
    member(groups)
    commit(groups, group_id="simple")
    listed = {each.group_id: each for each in groups.ask(ListGroupsRequest(), version).groups}
    assert {name: each.protocol_type for name, each in listed.items()} == {"g": "consumer", "simple": ""}
    if version >= 4:
        only = groups.ask(ListGroupsRequest(states_filter=["stable"]), version).groups
        assert [(each.group_id, each.group_state) for each in only] == [("g", "Stable")]
    if version >= 5:
        assert groups.ask(ListGroupsRequest(types_filter=["consumer"]), version).groups == []
        assert len(groups.ask(ListGroupsRequest(types_filter=["Classic"]), version).groups) == 2


@pytest.mark.parametrize("version", range(3))
def test_deleting_groups(groups: Broker, version: int) -> None:
    member(groups)
    commit(groups, group_id="simple")
    results = groups.ask(DeleteGroupsRequest(groups_names=["g", "simple", "absent"]), version).results
    assert [each.error_code for each in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        0,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
