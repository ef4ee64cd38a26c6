"""The broker is killed in the middle: groups go on, and no committed offset goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.compat.groups.committed import CommittedWatch
from tests.compat.groups.conftest import SETTINGS
from tests.compat.groups.feed import Feed
from tests.compat.groups.group import Group, GroupMaker
from tests.compat.groups.members import JavaMembers, Member
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess

KINDS: dict[str, list[Callable[[Group], Member]]] = {
    "classic": [lambda group: group.confluent(), lambda group: group.java(), lambda group: group.aiokafka()],
    "consumer": [lambda group: group.confluent_consumer(), lambda group: group.java_consumer()],
}


@pytest.fixture(scope="module")
def own_broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(SETTINGS)


@pytest.fixture
def make_own_group(
    own_broker: BrokerProcess, java_members_if_there: JavaMembers | None
) -> Iterator[GroupMaker]:
    maker = GroupMaker(own_broker.bootstrap, java_members_if_there)
    yield maker
    maker.end()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_go_on_after_the_broker_was_killed(
    own_broker: BrokerProcess, make_own_group: GroupMaker, kind: str
) -> None:
    group = make_own_group("restart")
    address = (own_broker.host, own_broker.port)
    with (
        Feed(make_own_group.bootstrap, group.topic, len(group.partitions)) as feed,
        CommittedWatch(address, group.name, group.partitions) as watch,
    ):
        members = [join(group) for join in KINDS[kind]]
        group.wait_balanced(*members)
        for member in members:
            group.wait_progress(member, 10)
        own_broker.kill()
        own_broker.start()
        for member in members:
            group.wait_progress(member, 10)
        produced = feed.finish()
        group.wait_processed(produced)
        before = {member.name: member.owned for member in members}
        assert set().union(*before.values()) == group.partitions
        # A member that is new to the restarted broker is taken in as before.
        newcomer = KINDS[kind][0](group)
        group.wait_balanced(*members, newcomer)
    watch.check()
    numbers = {
        number
        for member in group.members
        for event in member.told("records")
        for *_, number in event["records"]
    }
    assert numbers == produced
    assert sum(watch.seen.values()) == len(produced), "not everything that was processed is committed"
