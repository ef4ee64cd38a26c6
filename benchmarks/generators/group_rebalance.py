"""A group of many members over many partitions: all join at once, then one more comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.group_fleet import ClassicMember, ConsumerMember, Fleet

DEADLINE_S: Final = 90.0
# Members learn of a rebalance by a heartbeat. Clients wait longer between two; that wait is not the broker's.
HEARTBEAT_INTERVAL_S: Final = 0.5
CALM_S: Final = 2.0


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    measure = _classic if arguments["protocol"] == "classic" else _consumer
    fleet = Fleet((arguments["host"], arguments["port"]), HEARTBEAT_INTERVAL_S)
    watch = Stopwatch()
    try:
        figures = measure(fleet, arguments)
    finally:
        fleet.close()
    return {**figures, "elapsed_s": watch.elapsed_s(), "generator_cpu_s": watch.cpu_s()}


def _classic(fleet: Fleet, arguments: Mapping[str, Any]) -> dict[str, float]:
    group, topic, partitions = arguments["group"], arguments["topic"], arguments["partitions"]

    def members(count: int) -> list[ClassicMember]:
        return [ClassicMember(fleet, group, topic, partitions) for _ in range(count)]

    def is_balanced() -> bool:
        every = fleet.members
        return (
            all(each.has_share for each in every)
            and sum(each.partition_count for each in every) == partitions
            and len({each.generation for each in every if isinstance(each, ClassicMember)}) == 1
        )

    joined_s = _join(fleet, members(arguments["members"]), is_balanced)
    _let_time_pass(fleet)
    rebalanced_s = _join(fleet, members(1), is_balanced)
    return {"joined_s": joined_s, "rebalanced_s": rebalanced_s}


def _consumer(fleet: Fleet, arguments: Mapping[str, Any]) -> dict[str, float]:
    group, topic, partitions = arguments["group"], arguments["topic"], arguments["partitions"]

    def members(count: int) -> list[ConsumerMember]:
        return [ConsumerMember(fleet, group, topic) for _ in range(count)]

    def is_balanced() -> bool:
        every = [each for each in fleet.members if isinstance(each, ConsumerMember)]
        return (
            sum(each.partition_count for each in every) == partitions
            and max(each.partition_count for each in every) - min(each.partition_count for each in every) <= 1
            and len({each.epoch for each in every}) == 1
            and not any(each.is_waiting for each in every)
        )

    joined_s = _join(fleet, members(arguments["members"]), is_balanced)
    _let_time_pass(fleet)
    stayers = [each for each in fleet.members if isinstance(each, ConsumerMember)]
    for each in stayers:
        each.longest_answer_s, each.got_back_count = 0.0, 0
        each.given_up.clear()
    rebalanced_s = _join(fleet, members(1), is_balanced)
    return {
        "joined_s": joined_s,
        "rebalanced_s": rebalanced_s,
        "longest_pause_ms": max(each.longest_answer_s for each in stayers) * 1000,
        "interrupted": sum(each.got_back_count for each in stayers),
        "moved": sum(len(each.given_up) for each in stayers),
    }


def _join(fleet: Fleet, members: list[Any], is_balanced: Any) -> float:
    fleet.add(members)
    for member in members:
        member.join()
    return fleet.run_until(is_balanced, DEADLINE_S)


def _let_time_pass(fleet: Fleet) -> None:
    watch = Stopwatch()
    fleet.run_until(lambda: watch.elapsed_s() > CALM_S, DEADLINE_S)


if __name__ == "__main__":
    run_generator(generate)
