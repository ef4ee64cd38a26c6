"""The order of measurements: interleaved rounds on brokers that stay up, on clusters, then brokers alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System
from benchmarks.metrics import Metric, Sample
from benchmarks.processes import GeneratorFailed
from benchmarks.profiles import Profile
from benchmarks.progress import Progress
from benchmarks.workloads.base import WARM_UP_SCALE, Figures, SharedWorkload, SoloWorkload
from benchmarks.workloads.latency import Latency
from benchmarks.workloads.queues import QueueOne
from benchmarks.workloads.secured import SecuredLatency

SENSITIVE: Final = frozenset({Latency.name, SecuredLatency.name, QueueOne.name})
"""Workloads that take seconds and measure parts of a millisecond: the other broker stands still meanwhile. A
JVM that has nothing to do wakes up often enough to show in the slowest messages of its neighbour."""


@dataclass(slots=True)
class Outcome:
    """All samples of a run, and what could not be measured."""

    metrics: list[Metric] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    bystander_cpu_percent: list[float] = field(default_factory=list)
    """CPU of the broker that was up but not loaded, as a share of one core, for every measured round."""

    def record(self, figures: Figures, system: System, round_number: int) -> None:
        self.samples += [Sample(key, system, round_number, value) for key, value in figures.items()]


def rest(profile: Profile) -> None:
    """Let deletions and writes of the last round end, so that they do not fall into the next."""
    time.sleep(profile.rest_s)
    os.sync()


class Runner:
    """Runs workloads in order, and gathers what they measure."""

    def __init__(
        self,
        factory: BrokerFactory,
        profile: Profile,
        progress: Progress,
        rest_between: Callable[[Profile], None] | None = None,
    ) -> None:
        self._factory = factory
        self._profile = profile
        self._rest = rest_between or rest
        self._progress = progress
        self.outcome = Outcome()

    def run(
        self,
        shared: Sequence[SharedWorkload],
        solo: Sequence[SoloWorkload],
        clustered: Sequence[SharedWorkload] = (),
        secured: Sequence[SharedWorkload] = (),
    ) -> None:
        self._progress.start(self.step_count([*shared, *clustered, *secured], solo))
        if shared:
            self._run_shared(shared, self._factory.create)
        if clustered:
            self._run_shared(clustered, self._factory.create_cluster)
        if secured:
            self._run_shared(secured, self._factory.create_secured)
        for workload in solo:
            self._run_solo(workload)

    def step_count(self, shared: Sequence[SharedWorkload], solo: Sequence[SoloWorkload]) -> int:
        """Rounds of all workloads on all systems, the discarded warm-up rounds included."""
        rounds = len(shared) * (self._profile.rounds + 1)
        rounds += sum(workload.rounds(self._profile) for workload in solo)
        return rounds * len(self._factory.systems)

    def _run_shared(self, workloads: Sequence[SharedWorkload], create: Callable[[System], Broker]) -> None:
        brokers: list[Broker] = []
        try:
            for system in self._factory.systems:
                broker = create(system)
                broker.start()
                brokers.append(broker)
            for workload in workloads:
                self._run_shared_rounds(workload, brokers)
        finally:
            for broker in brokers:
                broker.stop()
                broker.remove_files()

    def _run_shared_rounds(self, workload: SharedWorkload, brokers: list[Broker]) -> None:
        self.outcome.metrics += workload.metrics(self._profile)
        # Round 0 is the warm-up, shorter and not recorded.
        for round_number in range(self._profile.rounds + 1):
            scale = 1.0 if round_number else WARM_UP_SCALE
            for broker in brokers:
                label = f"{workload.name} {f'round {round_number}' if round_number else 'warm-up'}"
                self._progress.step(f"{label}, {broker.system}")
                self._rest(self._profile)
                figures = self._measure_one(workload, broker, brokers, scale)
                if figures is not None and round_number:
                    self.outcome.record(figures, broker.system, round_number)

    def _measure_one(
        self, workload: SharedWorkload, broker: Broker, brokers: list[Broker], scale: float
    ) -> Figures | None:
        if not broker.server.is_running():
            self._fail(workload.name, broker.system, BrokerFailed("the broker has ended"))
            return None
        others = [other for other in brokers if other is not broker and other.server.is_running()]
        before_s, started = sum(other.cpu_s() for other in others), time.perf_counter()
        try:
            with ExitStack() as silence:
                if workload.name in SENSITIVE:
                    for other in others:
                        silence.enter_context(other.paused())
                figures = workload.measure(broker, self._profile, scale)
        except (BrokerFailed, GeneratorFailed) as error:
            self._fail(workload.name, broker.system, error)
            return None
        if others:
            spent_s = sum(other.cpu_s() for other in others) - before_s
            self.outcome.bystander_cpu_percent.append(100 * spent_s / (time.perf_counter() - started))
        return figures

    def _run_solo(self, workload: SoloWorkload) -> None:
        self.outcome.metrics += workload.metrics(self._profile)
        for round_number in range(1, workload.rounds(self._profile) + 1):
            for system in self._factory.systems:
                self._progress.step(f"{workload.name} round {round_number}, {system}")
                self._rest(self._profile)
                try:
                    figures = workload.measure(self._factory, system, self._profile)
                except (BrokerFailed, GeneratorFailed) as error:
                    self._fail(workload.name, system, error)
                else:
                    self.outcome.record(figures, system, round_number)

    def _fail(self, workload: str, system: System, error: Exception) -> None:
        message = f"{workload}, {system}: {error}"
        self.outcome.failures.append(message)
        self._progress.log(f"FAILED {message}")
