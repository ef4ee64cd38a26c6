"""The order of rounds decides whether a comparison is fair."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from rich.console import Console

from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System
from benchmarks.metrics import Metric
from benchmarks.profiles import SMOKE, Profile
from benchmarks.progress import Progress
from benchmarks.runner import Runner

PROFILE = replace(SMOKE, rounds=2)


@dataclass(slots=True, eq=False)
class FakeBroker:
    system: System
    events: list[str]
    is_up: bool = False
    kind: str = ""

    @property
    def server(self) -> FakeBroker:
        return self

    def is_running(self) -> bool:
        return self.is_up

    def start(self) -> float:
        self.events.append(f"start {self.system}{self.kind}")
        self.is_up = True
        return 0.1

    def stop(self) -> None:
        self.events.append(f"stop {self.system}{self.kind}")
        self.is_up = False

    def remove_files(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0


@dataclass(slots=True)
class FakeFactory:
    systems: tuple[System, ...]
    events: list[str] = field(default_factory=list)

    def create(self, system: System) -> FakeBroker:
        return FakeBroker(system, self.events)

    def create_cluster(self, system: System) -> FakeBroker:
        return FakeBroker(system, self.events, kind=" cluster")


class Shared:
    name: ClassVar[str] = "shared"
    summary: ClassVar[str] = ""

    def __init__(self, events: list[str], failing: System | None = None) -> None:
        self._events = events
        self._failing = failing

    def metrics(self, profile: Profile) -> list[Metric]:
        return [Metric(key="rate", title="rate", unit="MB/s")]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Mapping[str, float]:
        self._events.append(f"{broker.system} {scale:g}")
        if broker.system is self._failing:
            raise BrokerFailed("no answer")
        return {"rate": 1.0}


class Solo:
    name: ClassVar[str] = "solo"
    summary: ClassVar[str] = ""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def metrics(self, profile: Profile) -> list[Metric]:
        return []

    def rounds(self, profile: Profile) -> int:
        return 2

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Mapping[str, float]:
        self._events.append(f"solo {system}")
        return {"alone": 1.0}


def test_rounds_alternate_between_the_systems_after_a_warm_up_that_does_not_count() -> None:
    factory, runner = _runner(System.KAFKA, System.MILLRACE)
    runner.run([Shared(factory.events)], [Solo(factory.events)])

    assert factory.events == [
        *("start kafka", "start millrace"),
        *("kafka 0.5", "millrace 0.5"),
        *("kafka 1", "millrace 1", "kafka 1", "millrace 1"),
        *("stop kafka", "stop millrace"),
        *("solo kafka", "solo millrace", "solo kafka", "solo millrace"),
    ]
    rates = [sample for sample in runner.outcome.samples if sample.metric == "rate"]
    assert [(sample.system, sample.round) for sample in rates] == [
        (System.KAFKA, 1),
        (System.MILLRACE, 1),
        (System.KAFKA, 2),
        (System.MILLRACE, 2),
    ]
    assert runner.step_count([Shared([])], [Solo([])]) == 10


def test_clusters_come_up_when_the_single_brokers_are_gone() -> None:
    factory, runner = _runner(System.KAFKA, System.MILLRACE)
    runner.run([Shared(factory.events)], [], [Shared(factory.events)])

    rounds = ["kafka 0.5", "millrace 0.5", *["kafka 1", "millrace 1"] * 2]
    assert factory.events == [
        *("start kafka", "start millrace"),
        *rounds,
        *("stop kafka", "stop millrace"),
        *("start kafka cluster", "start millrace cluster"),
        *rounds,
        *("stop kafka cluster", "stop millrace cluster"),
    ]


def test_a_failed_round_is_reported_and_the_others_go_on() -> None:
    factory, runner = _runner(System.KAFKA, System.MILLRACE)
    runner.run([Shared(factory.events, failing=System.KAFKA)], [])

    assert {sample.system for sample in runner.outcome.samples} == {System.MILLRACE}
    assert runner.outcome.failures == ["shared, kafka: no answer"] * 3
    assert factory.events[-2:] == ["stop kafka", "stop millrace"]


def test_millrace_can_be_measured_alone() -> None:
    factory, runner = _runner(System.MILLRACE)
    runner.run([Shared(factory.events)], [])
    assert factory.events == ["start millrace", "millrace 0.5", "millrace 1", "millrace 1", "stop millrace"]
    assert runner.outcome.bystander_cpu_percent == []


def _runner(*systems: System) -> tuple[FakeFactory, Runner]:
    factory = FakeFactory(systems)
    progress = Progress(Console(file=io.StringIO()))
    return factory, Runner(cast("BrokerFactory", factory), PROFILE, progress, rest_between=lambda _: None)
