"""Loop and threads share no structure that either changes: the simulator looks at every handover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from millrace.core.ids import TopicId, TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.sim.handover import Handover, SharedWithThread
from millrace.sim.loop import SimLoop
from millrace.sim.network import Network
from millrace.sim.run import run_scenario
from millrace.sim.scenarios import BY_NAME
from millrace.sim.volume import SimVolume


@dataclass(frozen=True)
class Fixed:
    numbers: tuple[int, ...]
    inner: object = None


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


class Codec:
    def decode(self) -> None: ...


def work(*_arguments: object, name: object = None) -> None: ...


def closing_over(found: object) -> Callable[[], object]:
    return lambda: found


@pytest.mark.parametrize(
    "fit",
    [
        (work, "text", 1, b"bytes", (1, ("two", None))),
        (work, Fixed((1, 2), Fixed(()))),
        (work, LogConfig(), SimVolume(random.Random(1))),
        (Codec().decode,),
        (partial(work, Fixed((1,)), name="text"),),
        (closing_over((1, 2)),),
        (work, [1, 2], {"a": (1,)}),
    ],
)
def test_descriptions_may_cross(fit: tuple[Callable[..., object], object]) -> None:
    assert Handover(fit[0], fit[1:]).changes() == []


@pytest.mark.parametrize(
    "unfit",
    [
        (work, Counter()),
        (Counter().add,),
        (work, Fixed((), Counter())),
        (work, [Counter()]),
        (work, {1: Counter()}),
        (work, ((), (Counter(),))),
        (partial(work, Counter()),),
        (partial(work, name=Counter()),),
        (closing_over(Counter()),),
    ],
)
def test_what_the_loop_may_change_is_found_however_it_is_reached(
    unfit: tuple[Callable[..., object], object],
) -> None:
    with pytest.raises(SharedWithThread, match="Counter"):
        Handover(unfit[0], unfit[1:])


def test_a_list_that_the_loop_changes_after_it_was_handed_over_fails_the_run() -> None:
    loop = SimLoop(Network(random.Random(1)))
    numbers = [1, 2]

    async def hand_over() -> None:
        done = asyncio.get_running_loop().run_in_executor(None, sum, numbers)
        numbers.append(3)
        await done

    loop.run(hand_over())
    loop.close()
    assert [failure for failure in loop.failures if "argument 0 has changed" in failure], loop.failures


def test_logs_that_a_thread_would_put_into_the_tables_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs were made and entered by a thread, while the loop walked through the same tables: with thousands
    of topics that ended the broker. One instant for a thread's work hides it; the handover does not."""

    async def by_a_thread(
        self: LogDirectories, partitions: Sequence[TopicPartition], topic_id: TopicId, config: LogConfig
    ) -> None:
        def create() -> None:
            for each in partitions:
                self.create(each, topic_id, config)

        await asyncio.get_running_loop().run_in_executor(None, create)

    monkeypatch.setattr(LogDirectories, "create_missing", by_a_thread)
    named = BY_NAME["F25-no-fault"]
    outcome = run_scenario(1, named.play, named.plan, seconds=1)
    assert any("is a LogDirectories" in each.what for each in outcome.violations), outcome.violations
