"""Many groups that have nothing to do: every member has a connection and sends its heartbeats.

The broker's CPU time is read here, from the moment when all members are in and have nothing left to tell each
other: groups of the new protocol hand partitions on with their heartbeats, which takes a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.group_fleet import ClassicMember, ConsumerMember, Fleet, Member, ShareMember
from benchmarks.processes import cpu_seconds

DEADLINE_S: Final = 180.0
LOOK_EVERY_S: Final = 1.0
# All at once would overflow the listen queue; a few at a time would take too long, since each round waits for
# heartbeats.
GROUPS_AT_ONCE: Final = 250


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    fleet = Fleet((arguments["host"], arguments["port"]), arguments["heartbeat_interval_s"])
    try:
        for first in range(0, arguments["groups"], GROUPS_AT_ONCE):
            _join(fleet, arguments, range(first, min(first + GROUPS_AT_ONCE, arguments["groups"])))
        _wait_until_idle(fleet)
        for member in fleet.members:
            member.longest_answer_s = 0.0
        cpu_before_s, answers_before = cpu_seconds(arguments["broker_pid"]), fleet.answer_count
        watch = Stopwatch()
        fleet.run_until(lambda: watch.elapsed_s() > arguments["seconds"], DEADLINE_S)
        elapsed_s, own_cpu_s = watch.elapsed_s(), watch.cpu_s()
        broker_cpu_s = cpu_seconds(arguments["broker_pid"]) - cpu_before_s
        cpu_each_s = broker_cpu_s / (fleet.answer_count - answers_before)
        if not fleet.has_nothing_to_do:
            raise RuntimeError("groups that have nothing to do were rebalanced")
    finally:
        fleet.close()
    return {
        # For as many heartbeats as there should be: on a slow machine some of them come late, or not at all.
        "broker_cpu_percent": 100 * cpu_each_s * len(fleet.members) / arguments["heartbeat_interval_s"],
        "longest_answer_ms": max(member.longest_answer_s for member in fleet.members) * 1000,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": own_cpu_s,
    }


def _join(fleet: Fleet, arguments: Mapping[str, Any], numbers: range) -> None:
    topic, size = arguments["topic"], arguments["members"]
    added: list[Member] = []
    for number in numbers:
        group = f"{arguments['group']}-{number}"
        added += [_member(fleet, arguments, group, topic) for _ in range(size)]
    fleet.add(added)
    for member in added:
        member.join()
    fleet.run_until(lambda: all(member.has_share for member in added), DEADLINE_S)


def _member(fleet: Fleet, arguments: Mapping[str, Any], group: str, topic: str) -> Member:
    match arguments["protocol"]:
        case "classic":
            return ClassicMember(fleet, group, topic, arguments["partitions"])
        case "share":
            return ShareMember(fleet, group, topic)
        case _:
            return ConsumerMember(fleet, group, topic)


def _wait_until_idle(fleet: Fleet) -> None:
    waited = Stopwatch()
    while not fleet.has_nothing_to_do:
        if waited.elapsed_s() > DEADLINE_S:
            raise TimeoutError(f"the groups are still being rebalanced after {DEADLINE_S:.0f} s")
        # Looking at all members takes a while, so we do not look in every turn.
        _run_for(fleet, LOOK_EVERY_S)


def _run_for(fleet: Fleet, seconds: float) -> None:
    watch = Stopwatch()
    fleet.run_until(lambda: watch.elapsed_s() > seconds, DEADLINE_S)


if __name__ == "__main__":
    run_generator(generate)
