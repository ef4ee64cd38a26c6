"""A cluster is counted and ended as a whole: its store is a part of what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from benchmarks.clusters import ClusterServer, EtcdServer


@dataclass(slots=True)
class FakeProcess:
    """As a broker and as a store."""

    number: int
    events: list[str] = field(default_factory=list)
    is_up: bool = False

    @property
    def ports(self) -> list[int]:
        return [9000 + self.number]

    @property
    def pid(self) -> int:
        return self.number

    @property
    def pids(self) -> list[int]:
        return [self.number]

    @property
    def log_file(self) -> Path:
        return Path(f"node-{self.number}.log")

    @property
    def log_files(self) -> list[Path]:
        return [self.log_file]

    def prepare(self) -> None:
        self.events.append(f"prepare {self.number}")

    def start(self) -> None:
        self.is_up = True
        self.events.append(f"start {self.number}")

    def is_running(self) -> bool:
        return self.is_up

    def stop(self, timeout_s: float = 0) -> None:
        raise AssertionError("a cluster is not stopped in order")

    def kill(self) -> None:
        self.is_up = False
        self.events.append(f"kill {self.number}")


def test_the_store_is_up_before_the_brokers_and_ends_after_them() -> None:
    events: list[str] = []
    brokers, etcd = [FakeProcess(1, events), FakeProcess(2, events)], FakeProcess(3, events)
    cluster = ClusterServer(brokers, cast("EtcdServer", etcd))
    cluster.prepare()
    cluster.start()
    cluster.stop()
    assert events == [
        *("prepare 1", "prepare 2"),
        *("start 3", "start 1", "start 2"),
        *("kill 1", "kill 2", "kill 3"),
    ]


def test_all_processes_are_counted_but_clients_see_brokers_only() -> None:
    cluster = ClusterServer([FakeProcess(1), FakeProcess(2)], cast("EtcdServer", FakeProcess(3)))
    assert cluster.pids == [1, 2, 3]
    assert cluster.ports == [9001, 9002]
    assert [log_file.name for log_file in cluster.log_files] == ["node-1.log", "node-2.log", "node-3.log"]


def test_a_cluster_runs_when_all_of_it_runs() -> None:
    brokers, etcd = [FakeProcess(1), FakeProcess(2)], FakeProcess(3)
    cluster = ClusterServer(brokers, cast("EtcdServer", etcd))
    cluster.start()
    assert cluster.is_running()
    for process in (*brokers, etcd):
        process.is_up = False
        assert not cluster.is_running()
        process.is_up = True
