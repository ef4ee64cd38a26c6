"""The sticky assignor: everything is assigned once, evenly, and stays where it was if it can."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from millrace.groups.streams.assignor import StreamsMemberSpec, assign
from millrace.groups.streams.tasks import NO_TASKS, Role, Tasks


def specs(
    processes: Mapping[str, str], present: Mapping[str, Tasks] | None = None
) -> dict[str, StreamsMemberSpec]:
    """Members by id, each with the name of its process."""
    return {
        member: StreamsMemberSpec(process, (present or {}).get(member, NO_TASKS))
        for member, process in processes.items()
    }


def count(tasks: Tasks, *roles: Role) -> int:
    return sum(len(numbers) for (role, _), numbers in tasks.items() if role in roles)


def owners(assignment: Mapping[str, Tasks], role: Role) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for member, tasks in assignment.items():
        for (of_role, subtopology), numbers in tasks.items():
            for number in numbers:
                if of_role is role:
                    found.setdefault((subtopology, number), []).append(member)
    return found


def test_nobody_gets_nothing() -> None:
    assert assign({}, {"0": 3}, stateful=(), standby_count=0) == {}


def test_a_first_assignment_keeps_the_tasks_of_a_subtopology_apart() -> None:
    found = assign(specs({"a": "p", "b": "q"}), {"0": 2, "1": 2}, stateful=(), standby_count=0)
    assert found == {
        "a": {(Role.ACTIVE, "0"): frozenset({0}), (Role.ACTIVE, "1"): frozenset({0})},
        "b": {(Role.ACTIVE, "0"): frozenset({1}), (Role.ACTIVE, "1"): frozenset({1})},
    }


def test_a_process_with_more_threads_gets_more() -> None:
    found = assign(specs({"a": "p", "b": "p", "c": "q"}), {"0": 6}, stateful=(), standby_count=0)
    assert [count(found[member], Role.ACTIVE) for member in "abc"] == [2, 2, 2]


def test_tasks_stay_where_they_were_when_somebody_joins_or_leaves() -> None:
    one = assign(specs({"a": "p"}), {"0": 4}, stateful=(), standby_count=0)
    two = assign(specs({"a": "p", "b": "q"}, one), {"0": 4}, stateful=(), standby_count=0)
    assert two["a"][Role.ACTIVE, "0"] == {0, 1}
    three = assign(specs({"a": "p", "b": "q", "c": "r"}, two), {"0": 4}, stateful=(), standby_count=0)
    assert three["a"] == two["a"], "somebody has two of four tasks, so it is the one with two before"
    back = assign(specs({"b": "q"}, two), {"0": 4}, stateful=(), standby_count=0)
    assert back["b"][Role.ACTIVE, "0"] == {0, 1, 2, 3}


def test_a_task_of_a_lost_member_goes_to_its_standby() -> None:
    processes = {"a": "p", "b": "q", "c": "r"}
    before = assign(specs(processes), {"0": 3}, stateful={"0"}, standby_count=1)
    lost = owners(before, Role.ACTIVE)
    standby = owners(before, Role.STANDBY)
    task = next(task for task, members in lost.items() if members == ["a"])
    after = assign(specs({"b": "q", "c": "r"}, before), {"0": 3}, stateful={"0"}, standby_count=1)
    assert owners(after, Role.ACTIVE)[task] == standby[task]


def test_a_stateless_subtopology_has_no_standby_tasks() -> None:
    found = assign(specs({"a": "p", "b": "q"}), {"0": 2, "1": 2}, stateful={"1"}, standby_count=1)
    assert {subtopology for subtopology, _ in owners(found, Role.STANDBY)} == {"1"}


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(9)]), st.sampled_from("pqrs"), min_size=1
)
COUNTS = st.dictionaries(st.sampled_from("012"), st.integers(1, 7), min_size=1)


@given(MEMBERS, MEMBERS, COUNTS, st.integers(0, 2))
def test_every_assignment_is_whole_even_and_apart(
    first: dict[str, str], second: dict[str, str], counts: dict[str, int], standby_count: int
) -> None:
    stateful = sorted(counts)[:2]
    before: dict[str, Tasks] = {}
    last = before
    for processes in (first, second, second):
        found = assign(specs(processes, before), counts, stateful=stateful, standby_count=standby_count)
        assert list(found) == sorted(processes)
        active = owners(found, Role.ACTIVE)
        assert sorted(active) == [(name, n) for name in sorted(counts) for n in range(counts[name])]
        assert all(len(members) == 1 for members in active.values())
        loads = [count(tasks, Role.ACTIVE) for tasks in found.values()]
        if standby_count == 0:
            assert max(loads) - min(loads) <= 1
        copies = owners(found, Role.STANDBY)
        expected = min(standby_count, len(set(processes.values())) - 1)
        for task in active:
            places = [processes[member] for member in active[task] + copies.get(task, [])]
            assert len(places) == len(set(places)), "a process has one copy of a task"
            assert len(places) == 1 + (expected if task[0] in stateful else 0)
        last, before = before, found
    assert before == last, "nothing moves while nobody comes or goes"


@given(MEMBERS, st.integers(1, 20))
def test_one_more_member_takes_only_what_it_gets(processes: dict[str, str], tasks: int) -> None:
    before = assign(specs(processes), {"0": tasks}, stateful=(), standby_count=0)
    after = assign(specs({**processes, "new": "another"}, before), {"0": tasks}, stateful=(), standby_count=0)
    was, now = owners(before, Role.ACTIVE), owners(after, Role.ACTIVE)
    moved = [task for task in was if was[task] != now[task]]
    assert len(moved) <= count(after["new"], Role.ACTIVE) + 1
