"""Tasks by role."""

from __future__ import annotations

from millrace.groups.streams.tasks import Role, of_role


def test_the_tasks_of_a_role_are_sorted() -> None:
    tasks = {
        (Role.ACTIVE, "1"): frozenset({2, 0}),
        (Role.STANDBY, "0"): frozenset({1}),
        (Role.ACTIVE, "0"): frozenset({3}),
    }
    assert of_role(tasks, Role.ACTIVE) == [("0", [3]), ("1", [0, 2])]
    assert of_role(tasks, Role.STANDBY) == [("0", [1])]
    assert of_role(tasks, Role.WARMUP) == []
