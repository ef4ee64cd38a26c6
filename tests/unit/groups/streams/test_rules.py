"""Streams groups: joining, the initial delay, topics that are missing, standby tasks, leaving, fencing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.coordinator.decision import Producer
from millrace.groups.commands import (
    CommitInTransaction,
    CommitOffsets,
    DeleteGroup,
    FetchOffsets,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetToCommit,
)
from millrace.groups.errors import (
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InvalidHeartbeat,
    StaleMemberEpoch,
    UnknownMember,
)
from millrace.groups.streams.commands import Endpoint, StatusCode, StreamsHeartbeat, StreamsSettings
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.tasks import Role
from tests.unit.groups.consumer_lab import GROUP
from tests.unit.groups.streams.topologies import part, topology, word_count
from tests.unit.groups.streams_lab import StreamsClient, StreamsLab, settled, stored_state

COUNTS = word_count()
ALL = [("0", 0), ("0", 1), ("1", 0), ("1", 1)]


def commit(
    number: int, offset: int, *, member_id: str = "", epoch: int = -1, topic: str = "words"
) -> CommitOffsets:
    offsets = [OffsetToCommit(topic, number, offset, -1, "")]
    return CommitOffsets(group_id=GROUP, member_id=member_id, generation=epoch, offsets=offsets)


def ready_lab(settings: StreamsSettings | None = None) -> StreamsLab:
    lab = StreamsLab(settings)
    for name in ("words", "regrouped", "counts-changelog"):
        lab.set_topic(name, 2)
    return lab


def test_a_first_member_gets_all_tasks_at_once_without_a_delay() -> None:
    lab = ready_lab()
    answer = lab.beaten(StreamsClient("m", COUNTS).beat())
    assert answer.tasks == {(Role.ACTIVE, "0"): [0, 1], (Role.ACTIVE, "1"): [0, 1]}
    assert (answer.member_epoch, answer.heartbeat_interval_ms, answer.statuses) == (2, 5_000, ())
    assert lab.streams_group.state_name == "Stable"
    again = lab.beaten(StreamsHeartbeat(GROUP, "m", 2, client_id="client", client_host="/host"))
    assert again.tasks is None, "nothing has changed"
    assert len(lab.log) == 6, "topology, member, epoch, target, its epoch, assignment"


def test_an_empty_group_waits_for_more_members() -> None:
    lab = ready_lab(StreamsSettings(assignment_interval_ms=0))
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    for client in (first, second):
        client.take(lab.submit(client.beat()))
        assert client.statuses == [StatusCode.ASSIGNMENT_DELAYED.value]
        assert client.tasks == {}
    assert lab.streams_group.state_name == "Assigning"
    lab.pass_time(3_000)
    targets = [len(tasks) for tasks in lab.streams_group.target.values()]
    assert len(targets) == 2, "the target is there before anybody asks for it"
    settled(lab, first, second)
    assert sorted(first.active + second.active) == ALL
    assert (first.statuses, second.statuses) == ([], [])


def test_targets_are_not_computed_too_often() -> None:
    lab = ready_lab(StreamsSettings(initial_rebalance_delay_ms=0))
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    first.take(lab.submit(first.beat()))
    second.take(lab.submit(second.beat()))
    assert second.statuses == [StatusCode.ASSIGNMENT_DELAYED.value]
    lab.pass_time(1_000)
    settled(lab, first, second)
    assert len(first.active) == len(second.active) == 2


def test_missing_topics_are_named_and_the_group_waits_for_them() -> None:
    lab = StreamsLab()
    client = StreamsClient("m", COUNTS)
    client.take(lab.submit(client.beat()))
    assert client.statuses == [StatusCode.MISSING_SOURCE_TOPICS.value]
    assert lab.streams_group.state_name == "NotReady"
    lab.set_topic("words", 2)
    answer = lab.beaten(client.beat())
    assert [each.code for each in answer.statuses] == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert [(each.name, each.partition_count) for each in answer.missing_topics] == [
        ("counts-changelog", 2),
        ("regrouped", 2),
    ]
    client.take(answer)
    lab.set_topic("regrouped", 2)
    lab.set_topic("counts-changelog", 2)
    settled(lab, client)
    assert (client.active, client.statuses) == (ALL, [])
    assert lab.streams_group.state_name == "Stable"


def test_tasks_are_given_up_when_a_topic_goes() -> None:
    lab = ready_lab()
    client = StreamsClient("m", COUNTS)
    settled(lab, client)
    lab.delete_topic("words")
    settled(lab, client)
    assert (client.active, client.statuses) == ([], [StatusCode.MISSING_SOURCE_TOPICS.value])
    assert lab.streams_group.state_name == "NotReady"


def test_a_task_moves_only_after_its_member_has_given_it_up() -> None:
    lab = ready_lab()
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first)
    second.take(lab.submit(second.beat()))
    assert second.active == []
    told = lab.beaten(first.beat())
    assert lab.streams_group.state_name == "Reconciling"
    second.take(lab.submit(second.beat()))
    assert second.active == [], "the first member has not said yet that it gave anything up"
    first.take(told)
    settled(lab, first, second)
    assert len(first.active) == len(second.active) == 2
    assert sorted(first.active + second.active) == ALL


def test_a_member_that_gives_nothing_up_is_removed() -> None:
    lab = ready_lab()
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first)
    second.take(lab.submit(second.beat()))
    lab.beaten(first.beat())
    lab.pass_time(9_999)
    assert "a" in lab.streams_group.members
    lab.submit(second.beat())
    lab.pass_time(1)
    assert list(lab.streams_group.members) == ["b"]
    settled(lab, second)
    assert second.active == ALL


def test_a_silent_member_is_removed() -> None:
    lab = ready_lab()
    settled(lab, StreamsClient("a", COUNTS))
    lab.pass_time(44_999)
    assert not lab.streams_group.is_empty
    lab.pass_time(1)
    assert (lab.streams_group.is_empty, lab.streams_group.state_name) == (True, "Empty")


def test_standby_tasks_are_kept_apart_and_take_over() -> None:
    lab = ready_lab(StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0, standby_count=1))
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first, second)
    for here, there in ((first, second), (second, first)):
        copied = [task for task in here.active if task[0] == "1"]
        assert there.of_role(Role.STANDBY) == copied
    lab.submit(StreamsHeartbeat(GROUP, "a", -1))
    settled(lab, second)
    assert (second.active, second.of_role(Role.STANDBY)) == (ALL, [])


def test_a_new_number_of_standby_tasks_changes_the_target() -> None:
    lab = ready_lab()
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first, second)
    epoch = lab.streams_group.epoch
    lab.streams_settings = replace(lab.streams_settings, standby_count=1)
    settled(lab, first, second)
    assert lab.streams_group.epoch == epoch + 1
    assert len(first.of_role(Role.STANDBY) + second.of_role(Role.STANDBY)) == 2


def test_threads_of_one_process_never_hold_a_task_twice() -> None:
    lab = ready_lab(StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0, standby_count=1))
    clients = [StreamsClient(name, COUNTS, process_id="one") for name in ("a", "b")]
    settled(lab, *clients)
    assert [client.of_role(Role.STANDBY) for client in clients] == [[], []]


def test_a_topology_stays_while_the_group_has_members() -> None:
    lab = ready_lab()
    client = StreamsClient("a", COUNTS)
    settled(lab, client)
    other = StreamsClient("b", topology(part("0", ["words"])))
    assert lab.refused(other.beat()) is InvalidHeartbeat
    lab.submit(StreamsHeartbeat(GROUP, "a", -1))
    settled(lab, other)
    assert other.active == [("0", 0), ("0", 1)]
    old = StreamsClient("c", topology(part("0", ["words"])))
    settled(lab, old, other)
    assert len(old.active) == 1


def test_a_member_with_an_old_topology_is_told() -> None:
    lab = ready_lab()
    newer = StreamsClient("a", topology(part("0", ["words"]), epoch=2))
    settled(lab, newer)
    older = StreamsClient("b", topology(part("0", ["words"]), epoch=1))
    older.take(lab.submit(older.beat()))
    assert older.statuses == [StatusCode.STALE_TOPOLOGY.value]


def test_one_member_can_stop_the_application() -> None:
    lab = ready_lab()
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first, second)
    lab.submit(StreamsHeartbeat(GROUP, "a", -1, shuts_down=True))
    answer = lab.beaten(second.beat())
    assert [each.code for each in answer.statuses] == [StatusCode.SHUTDOWN_APPLICATION]
    assert "member a" in answer.statuses[0].detail
    lab.submit(StreamsHeartbeat(GROUP, "b", -1))
    assert lab.streams_group.shut_down_by is None, "the next members may begin"


def test_endpoints_are_told_when_they_change() -> None:
    lab = ready_lab()
    here = Endpoint("here", 80)
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    first.take(lab.submit(first.beat()._replace(endpoint=here)))
    second.take(lab.submit(second.beat()))
    settled(lab, first, second)
    epoch = lab.streams_group.endpoint_epoch
    told = lab.beaten(second.beat())
    assert (told.endpoint_epoch, told.endpoints) == (
        epoch,
        ((here, told.endpoints[0].active, []),) if told.endpoints else None,
    )
    assert told.endpoints is not None
    assert {topic for topic, _ in told.endpoints[0].active} == {"words", "regrouped"}
    assert lab.beaten(second.beat()._replace(endpoint_epoch=epoch)).endpoints is None
    lab.submit(StreamsHeartbeat(GROUP, "a", -1))
    gone = lab.beaten(second.beat()._replace(endpoint_epoch=epoch))
    assert (gone.endpoints, gone.endpoint_epoch) == ((), epoch + 1)


@pytest.mark.parametrize("owned, why", [([("2", [0])], "does not exist"), ([("0", [2])], "is invalid")])
def test_a_member_cannot_own_what_is_not_there(owned: list[tuple[str, list[int]]], why: str) -> None:
    lab = ready_lab()
    client = StreamsClient("a", COUNTS)
    settled(lab, client)
    answer = lab.submit(client.beat()._replace(active=owned))
    assert isinstance(answer, InvalidHeartbeat)
    assert why in str(answer)


def test_wrong_epochs_are_fenced_and_a_lost_answer_is_not() -> None:
    lab = ready_lab()
    client = StreamsClient("a", COUNTS)
    settled(lab, client)
    assert lab.refused(StreamsHeartbeat(GROUP, "a", client.epoch + 1)) is FencedMemberEpoch
    assert lab.refused(StreamsHeartbeat(GROUP, "x", 1)) is UnknownMember
    assert lab.refused(StreamsHeartbeat(GROUP, "x", -1)) is UnknownMember
    assert lab.refused(StreamsHeartbeat("none", "a", 1)) is GroupNotFound
    other = StreamsClient("b", COUNTS)
    other.take(lab.submit(other.beat()))
    client.take(lab.submit(client.beat()))
    before = client.beat()
    assert lab.beaten(before).member_epoch > before.member_epoch
    assert lab.beaten(before).member_epoch > before.member_epoch, "it comes with its epoch from before"
    empty: list[tuple[str, list[int]]] = []
    assert lab.beaten(before._replace(active=empty)).member_epoch > before.member_epoch
    assert lab.refused(before._replace(active=None, standby=None, warmup=None)) is FencedMemberEpoch


def test_a_full_group_takes_nobody_new() -> None:
    lab = ready_lab(replace(ready_lab().streams_settings, size_max=1))
    client = StreamsClient("a", COUNTS)
    settled(lab, client)
    assert lab.refused(StreamsClient("b", COUNTS).beat()) is GroupFull
    client.epoch, client.tasks = 0, {}
    assert lab.beaten(client.beat()).tasks is not None, "who is in may join again"


def test_a_group_of_another_kind_is_left_alone_unless_it_is_empty() -> None:
    lab = ready_lab()
    lab.submit(commit(0, 5))
    settled(lab, StreamsClient("a", COUNTS))
    assert lab.streams_group.state_name == "Stable"
    fetched = lab.submit(FetchOffsets(GROUP, [("words", 0)]))
    assert isinstance(fetched, OffsetsFetched)
    assert fetched.offsets[0][2] is not None, "its offsets stay"


def test_members_commit_and_fetch_with_their_epoch() -> None:
    lab = ready_lab()
    client = StreamsClient("a", COUNTS)
    settled(lab, client)

    epoch = client.epoch
    assert lab.submit(commit(0, 5, member_id="a", epoch=epoch)) == OffsetsCommitted([None])
    assert lab.refused(commit(0, 5, member_id="x", epoch=epoch)) is UnknownMember
    assert lab.refused(commit(0, 5, member_id="a", epoch=epoch + 1)) is StaleMemberEpoch
    assert lab.refused(commit(0, 5)) is UnknownMember
    other = StreamsClient("b", COUNTS)
    settled(lab, other, client)
    assert client.epoch > epoch
    (kept, *_) = [number for name, number in client.active if name == "0"]
    old = commit(kept, 6, member_id="a", epoch=epoch)
    assert lab.submit(old) == OffsetsCommitted([None])
    assert lab.refused(commit(1 - kept, 6, member_id="a", epoch=epoch)) is StaleMemberEpoch
    unread = commit(0, 6, member_id="a", epoch=epoch, topic="unread")
    assert lab.refused(unread) is StaleMemberEpoch
    fetch = FetchOffsets(GROUP, [("words", 0)], member_id="a", member_epoch=epoch)
    assert lab.refused(fetch) is StaleMemberEpoch
    assert isinstance(lab.submit(fetch._replace(member_epoch=client.epoch)), OffsetsFetched)


def test_a_transaction_may_commit_in_an_older_epoch_what_its_member_still_has() -> None:
    lab = ready_lab()
    client, other = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, client)
    since = client.epoch
    settled(lab, other, client)
    (kept, *_) = [number for name, number in client.active if name == "0"]
    machine = lab.machine

    def committed(number: int) -> object:
        command = commit(number, 6, member_id="a", epoch=since)
        decision = machine.decide(CommitInTransaction(Producer(1, 0), command), lab.now_ms, 1)
        return decision.error or decision.response

    assert committed(kept) == OffsetsCommitted([None])
    assert isinstance(committed(1 - kept), IllegalGeneration)


def test_a_group_is_deleted_when_it_is_empty() -> None:
    lab = ready_lab()
    settled(lab, StreamsClient("a", COUNTS))
    assert lab.refused(DeleteGroup(GROUP)) is GroupNotEmpty
    lab.submit(StreamsHeartbeat(GROUP, "a", -1))
    lab.submit(DeleteGroup(GROUP))
    assert GROUP not in lab.machine.groups
    assert GROUP not in lab.replayed(is_compacted=True).groups


def test_a_restart_finds_all_and_sets_the_timers() -> None:
    lab = ready_lab()
    first, second = StreamsClient("a", COUNTS), StreamsClient("b", COUNTS)
    settled(lab, first)
    second.take(lab.submit(second.beat()))
    lab.beaten(first.beat())
    for is_compacted in (False, True):
        group = lab.replayed(is_compacted=is_compacted).groups[GROUP]
        assert isinstance(group, StreamsGroup)
        assert stored_state(group) == stored_state(lab.streams_group)
    lab.restart()
    assert {name[0] for name in lab.timers if isinstance(name, tuple)} == {"session", "revocation"}
    settled(lab, first, second)
    assert sorted(first.active + second.active) == ALL
