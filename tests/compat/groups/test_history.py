"""The checks of a group's history find what they are there to find."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.groups import history
from tests.compat.groups.members import Member

TOPIC = "orders"


def member(name: str, *events: tuple[float, str, Any], failed_at: float | None = None) -> Member:
    made = Member(name)
    for at, kind, facts in events:
        key = {"records": "records", "committed": "offsets"}.get(kind, "partitions")
        made.take({"event": kind, "at": at, "generation": 1, key: facts})
    if failed_at is not None:
        made.failed_at.append(failed_at)
    return made


def record(number: int, offset: int) -> list[Any]:
    return [TOPIC, 0, offset, number]


def test_two_owners_at_once_are_found() -> None:
    first = member("first", (1.0, "assigned", [[TOPIC, 0]]), (3.0, "revoked", [[TOPIC, 0]]))
    after = member("second", (3.0, "assigned", [[TOPIC, 0]]))
    history.assert_one_owner_at_a_time([first, after])
    meanwhile = member("second", (2.9, "assigned", [[TOPIC, 0]]))
    with pytest.raises(AssertionError, match="owned twice"):
        history.assert_one_owner_at_a_time([first, meanwhile])


def test_a_killed_owner_owns_nothing_any_more() -> None:
    killed = member("first", (1.0, "assigned", [[TOPIC, 0]]), failed_at=2.0)
    history.assert_one_owner_at_a_time([killed, member("second", (2.5, "assigned", [[TOPIC, 0]]))])
    with pytest.raises(AssertionError, match="owned twice"):
        history.assert_one_owner_at_a_time([killed, member("second", (1.5, "assigned", [[TOPIC, 0]]))])


def test_a_skipped_record_is_found() -> None:
    reader = member("first", (1.0, "records", [record(0, 0), record(2, 2)]))
    history.assert_nothing_skipped([reader], {0, 2})
    with pytest.raises(AssertionError, match="never processed"):
        history.assert_nothing_skipped([reader], {0, 1, 2})


def test_a_repeat_without_a_failure_is_found() -> None:
    first, second = (member(name, (1.0, "records", [record(0, 0)])) for name in ("first", "second"))
    with pytest.raises(AssertionError, match="processed twice"):
        history.assert_repeats_only_after_failures([first, second])
    first.failed_at.append(2.0)
    history.assert_repeats_only_after_failures([first, second])


def test_a_repeat_of_what_was_committed_is_found() -> None:
    killed = member(
        "first",
        (1.0, "records", [record(0, 0), record(1, 1)]),
        (1.5, "committed", [[TOPIC, 0, 1]]),
        failed_at=2.0,
    )
    history.assert_repeats_only_after_failures([killed, member("second", (3.0, "records", [record(1, 1)]))])
    with pytest.raises(AssertionError, match="was committed"):
        history.assert_repeats_only_after_failures(
            [killed, member("second", (3.0, "records", [record(0, 0)]))]
        )


def test_two_members_in_one_generation_are_found() -> None:
    first = member("first", (1.0, "records", [record(0, 0)]))
    second = member("second", (2.0, "records", [record(1, 1)]))
    history.assert_one_member_per_generation([first])
    with pytest.raises(AssertionError, match="was processed by"):
        history.assert_one_member_per_generation([first, second])
