"""The sticky assignor of tasks: even loads first, then as many tasks as possible where they were.

Active tasks stay with their member up to its share, or go to one that kept a copy, or to the member with the
least load. Standby tasks follow the same order, and never share a process with another copy of their task: a
process that dies would take both along.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from millrace.groups.streams.tasks import Role, TaskPlace, Tasks

StreamsTask: TypeAlias = tuple[str, int]
"""A subtopology and a number."""


class StreamsMemberSpec(NamedTuple):
    """What the assignor needs to know of a member."""

    process_id: str
    present: Tasks
    """Its target so far."""


def assign(
    members: Mapping[str, StreamsMemberSpec],
    task_counts: Mapping[str, int],
    *,
    stateful: Collection[str],
    standby_count: int,
) -> dict[str, Tasks]:
    """A new target for every member. `stateful` are the subtopologies whose tasks may have standby copies."""
    if not members:
        return {}
    return _Assignment(members, task_counts, stateful, standby_count).computed()


class _Share:
    """How many tasks each member may get that is not full. Who reaches it leaves the rest to the others."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.size = -(-tasks // members)

    def reached(self, count: int) -> None:
        if count == self.size:
            self._members -= 1
            self._tasks -= count
            self.size = -(-self._tasks // self._members) if self._members else 0


class _Process:
    """Members that live and die together."""

    def __init__(self) -> None:
        self.member_count = 0
        self.task_count = 0
        self.tasks: set[StreamsTask] = set()


class _Worker:
    """A member while tasks are being given out."""

    def __init__(self, member_id: str, process: _Process) -> None:
        self.member_id = member_id
        self.process = process
        self.count = 0
        self.tasks: dict[TaskPlace, set[int]] = {}

    def add(self, task: StreamsTask, role: Role) -> int:
        subtopology, number = task
        self.tasks.setdefault((role, subtopology), set()).add(number)
        self.process.tasks.add(task)
        self.process.task_count += 1
        self.count += 1
        return self.count

    @property
    def load(self) -> tuple[int, float, str]:
        """Its own tasks count most, then those of its process; the id makes the order the same everywhere."""
        return self.count, self.process.task_count / self.process.member_count, self.member_id


class _Assignment:
    def __init__(
        self,
        members: Mapping[str, StreamsMemberSpec],
        task_counts: Mapping[str, int],
        stateful: Collection[str],
        standby_count: int,
    ) -> None:
        self._standby_count = standby_count
        self._active = _tasks(task_counts, task_counts)
        self._copied = _tasks(task_counts, stateful) if standby_count else []
        active_count = len(self._active)
        self._active_share = _Share(active_count, len(members))
        self._share = _Share(active_count + len(self._copied) * standby_count, len(members))
        self._processes: dict[str, _Process] = {}
        self._workers: dict[str, _Worker] = {}
        self._was_active: dict[StreamsTask, _Worker] = {}
        self._was_standby: dict[StreamsTask, list[_Worker]] = {}
        for member_id in sorted(members):
            self._add_member(member_id, members[member_id])

    def _add_member(self, member_id: str, spec: StreamsMemberSpec) -> None:
        process = self._processes.setdefault(spec.process_id, _Process())
        worker = self._workers[member_id] = _Worker(member_id, process)
        process.member_count += 1
        for (role, subtopology), numbers in spec.present.items():
            for number in sorted(numbers):
                if role is Role.ACTIVE:
                    self._was_active[subtopology, number] = worker
                elif role is Role.STANDBY:
                    self._was_standby.setdefault((subtopology, number), []).append(worker)

    def computed(self) -> dict[str, Tasks]:
        self._assign_active()
        self._assign_standby()
        return {
            member_id: {place: frozenset(numbers) for place, numbers in worker.tasks.items()}
            for member_id, worker in self._workers.items()
        }

    def _assign_active(self) -> None:
        # Tasks with the same number mostly work on the same keys, so they are looked at together.
        rest = sorted(self._active, key=_by_number)
        rest = [task for task in rest if not self._keep_active(task, self._was_active.get(task))]
        rest = [task for task in rest if not self._keep_active(task, self._keeper_of_copy(task))]
        queue = _Queue(self._workers.values())
        for task in sorted(rest):
            worker = queue.take(lambda _: True)
            assert worker is not None, "there is a member"
            self._give_active(worker, task)
            queue.put_back()

    def _keep_active(self, task: StreamsTask, worker: _Worker | None) -> bool:
        if worker is None or worker.count >= self._active_share.size:
            return False
        self._give_active(worker, task)
        return True

    def _give_active(self, worker: _Worker, task: StreamsTask) -> None:
        count = worker.add(task, Role.ACTIVE)
        self._active_share.reached(count)
        self._share.reached(count)

    def _keeper_of_copy(self, task: StreamsTask) -> _Worker | None:
        """The member with the least load that had a standby copy of the task."""
        return _least_loaded(self._was_standby.get(task, ()))

    def _assign_standby(self) -> None:
        open_copies: list[tuple[StreamsTask, int]] = []
        for task in sorted(self._copied, key=_by_number, reverse=True):
            kept = 0
            while kept < self._standby_count and self._keep_standby(task):
                kept += 1
            if kept < self._standby_count:
                open_copies.append((task, self._standby_count - kept))
        queue = _Queue(self._workers.values())
        for task, count in sorted(open_copies, reverse=True):
            for _ in range(count):
                worker = queue.take(self._lacks(task))
                if worker is not None:
                    self._share.reached(worker.add(task, Role.STANDBY))
                queue.put_back()

    def _lacks(self, task: StreamsTask) -> Callable[[_Worker], bool]:
        return lambda worker: task not in worker.process.tasks

    def _keep_standby(self, task: StreamsTask) -> bool:
        """Give a standby copy to a member that has had the task, if its share leaves room for it."""
        before = self._was_active.get(task)
        for worker in (before, _least_loaded(self._was_standby.get(task, ()), without=task)):
            if worker is None or task in worker.process.tasks or worker.count >= self._share.size:
                continue
            self._share.reached(worker.add(task, Role.STANDBY))
            return True
        return False


class _Queue:
    """Members by load. Those that were passed over come back with `put_back`."""

    def __init__(self, workers: Iterable[_Worker]) -> None:
        self._heap = [(worker.load, worker) for worker in workers]
        heapq.heapify(self._heap)
        self._taken: list[_Worker] = []

    def take(self, fits: Callable[[_Worker], bool]) -> _Worker | None:
        """The member with the least load that fits; None if none does."""
        while self._heap:
            load, worker = heapq.heappop(self._heap)
            if load != worker.load:
                # Loads only grow, so whoever has got tasks meanwhile belongs further behind.
                heapq.heappush(self._heap, (worker.load, worker))
                continue
            self._taken.append(worker)
            if fits(worker):
                return worker
        return None

    def put_back(self) -> None:
        for worker in self._taken:
            heapq.heappush(self._heap, (worker.load, worker))
        self._taken.clear()


def _tasks(task_counts: Mapping[str, int], subtopologies: Collection[str]) -> list[StreamsTask]:
    return [
        (subtopology, number)
        for subtopology, count in sorted(task_counts.items())
        if subtopology in subtopologies
        for number in range(count)
    ]


def _least_loaded(workers: Sequence[_Worker], without: StreamsTask | None = None) -> _Worker | None:
    fitting = [worker for worker in workers if without is None or without not in worker.process.tasks]
    return min(fitting, key=lambda worker: worker.load, default=None)


def _by_number(task: StreamsTask) -> tuple[int, str]:
    return task[1], task[0]
