"""Share sessions: epochs, what is told, whose turn it is."""

from __future__ import annotations

import pytest

from millrace.broker.queues import share_sessions
from millrace.broker.queues.share_sessions import (
    EPOCH_MAX,
    LOWEST_FIRST_EVERY,
    InvalidShareSessionEpoch,
    ShareSession,
    ShareSessionLimitReached,
    ShareSessionNotFound,
    ShareSessions,
    TargetKey,
    TooManySharePartitions,
)
from millrace.core.ids import TopicId

A, B, C = ((TopicId(bytes([number]) * 16), number) for number in (1, 2, 3))


class Ends:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def session(*targets: TargetKey) -> ShareSession:
    return ShareSession("g", "m", targets, Ends())


def no_priority(_key: TargetKey) -> int:
    return 0


def turn(found: ShareSession, epoch: int, priorities: dict[TargetKey, int] | None = None) -> list[TargetKey]:
    known = priorities or {}
    return [target.key for target in found.in_turn(epoch, lambda key: known.get(key, 0))]


def test_a_session_counts_its_requests() -> None:
    sessions = ShareSessions(2)
    begun = sessions.begin("g", "m", [A], Ends())
    assert sessions.resume("g", "m", 1) is begun
    assert sessions.resume("g", "m", 2) is begun
    with pytest.raises(InvalidShareSessionEpoch, match="is at epoch 3, the request says 2"):
        sessions.resume("g", "m", 2)
    assert sessions.resume("g", "m", 3) is begun


def test_the_count_begins_again_at_one() -> None:
    sessions = ShareSessions(2)
    begun = sessions.begin("g", "m", [], Ends())
    begun.epoch = EPOCH_MAX
    sessions.resume("g", "m", EPOCH_MAX)
    assert begun.epoch == 1


def test_a_session_that_is_not_there_is_not_found() -> None:
    sessions = ShareSessions(2)
    sessions.begin("g", "m", [], Ends())
    for group_id, member_id in (("g", "other"), ("other", "m")):
        with pytest.raises(ShareSessionNotFound):
            sessions.resume(group_id, member_id, 1)
        with pytest.raises(ShareSessionNotFound):
            sessions.find(group_id, member_id)


def test_a_new_session_takes_the_place_of_the_old_one_also_when_there_is_no_room() -> None:
    sessions = ShareSessions(1)
    first, second = Ends(), Ends()
    before = sessions.begin("g", "m", [A], first)
    after = sessions.begin("g", "m", [B], second)
    assert (first.count, second.count) == (1, 0)
    assert sessions.find("g", "m") is after
    assert len(sessions) == 1
    # Whoever waits for the end of the old one hears of it, and does not end the new one.
    sessions.end(before)
    assert sessions.find("g", "m") is after
    assert first.count == 1


def test_there_are_no_more_sessions_than_there_may_be() -> None:
    sessions = ShareSessions(2)
    sessions.begin("g", "1", [], Ends())
    last = sessions.begin("g", "2", [], Ends())
    with pytest.raises(ShareSessionLimitReached, match="there are 2 share sessions"):
        sessions.begin("g", "3", [], Ends())
    sessions.end(last)
    sessions.begin("g", "3", [], Ends())


def test_a_group_is_known_while_one_of_its_members_is() -> None:
    sessions = ShareSessions(3)
    begun = [sessions.begin("g", name, [A, B], Ends()) for name in ("1", "2")]
    sessions.begin("other", "1", [A], Ends())
    assert sessions.partitions_count == 5
    sessions.end(begun[0])
    assert sessions.has_members("g")
    sessions.end(begun[1])
    assert not sessions.has_members("g")
    assert sessions.has_members("other")


def test_partitions_are_added_and_forgotten() -> None:
    found = session(A)
    found.change([B, A, C], [A])
    assert list(found.targets) == [B, C]
    found.change([], [C, A])
    assert list(found.targets) == [B]


def test_a_session_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "TARGETS_MAX", 2)
    found = session(A)
    found.change([B], [])
    with pytest.raises(TooManySharePartitions, match="more than 2 partitions"):
        found.change([C], [])


def test_every_request_begins_with_another_partition() -> None:
    found = session(A, B, C)
    assert [turn(found, epoch) for epoch in (0, 1, 2, 3)] == [[A, B, C], [B, C, A], [C, A, B], [A, B, C]]


def test_what_was_served_goes_to_the_end() -> None:
    found = session(A, B, C)
    found.served(found.targets[A])
    assert list(found.targets) == [B, C, A]
    gone = found.targets[B]
    found.change([], [B])
    found.served(gone)
    assert list(found.targets) == [C, A]


def test_higher_priorities_come_first_but_for_every_eighth_time() -> None:
    found = session(A, B, C)
    priorities = {A: 1, B: 31}
    turns = [turn(found, epoch, priorities) for epoch in range(1, 2 * LOWEST_FIRST_EVERY + 1)]
    urgent = [number for number, order in enumerate(turns, 1) if order == [B, A, C]]
    assert [number for number in range(1, 17) if number not in urgent] == [8, 16]
    assert turns[7] == [C, A, B]


def test_equals_in_priority_still_take_turns() -> None:
    found = session(A, B, C)
    priorities = {C: 3}
    assert [turn(found, epoch, priorities) for epoch in (1, 2, 3)] == [[C, B, A], [C, A, B], [C, A, B]]
