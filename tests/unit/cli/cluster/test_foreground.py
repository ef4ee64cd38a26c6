"""A cluster that lives as long as its command: it ends with a signal, or when somebody else has ended it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.cli.cluster import foreground
from millrace.cli.cluster.foreground import stay
from millrace.cli.cluster.local_cluster import LocalCluster


class World:
    """Whether the cluster runs, and what was done to it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.runs = False
        self.acts: list[str] = []
        monkeypatch.setattr(foreground, "LOOK_INTERVAL_S", 0)
        monkeypatch.setattr(LocalCluster, "load", lambda _directory: SimpleNamespace(is_running=self.look()))
        self.looks = 0
        self.on_look: Callable[[], None] = lambda: None

    def look(self) -> bool:
        self.looks += 1
        self.on_look()
        return self.runs

    def start(self) -> None:
        self.acts.append("start")
        self.runs = True
        LocalCluster.state_file(self.directory).touch()

    def stop(self) -> None:
        self.acts.append("stop")
        self.runs = False

    def stay(self) -> None:
        stay(self.directory, start=self.start, ready=lambda: self.acts.append("ready"), stop=self.stop)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_cluster_in_order(
    world: World, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    world.on_look = lambda: signal.raise_signal(number) if world.looks == 3 else None
    world.stay()
    assert world.acts == ["start", "ready", "stop"]
    assert signal.getsignal(number) is before
    assert capsys.readouterr().err == "stopping the brokers, then etcd\nthe cluster is down\n"


def test_a_cluster_that_somebody_else_has_stopped_ends_the_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended() -> None:
        world.runs = world.looks < 3

    world.on_look = ended
    world.stay()
    assert world.acts == ["start", "ready"]
    assert capsys.readouterr().err == "the cluster is down\n"


def test_what_had_started_is_stopped_when_the_start_fails(world: World) -> None:
    def start() -> None:
        world.start()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        stay(world.directory, start=start, ready=lambda: world.acts.append("ready"), stop=world.stop)
    assert world.acts == ["start", "stop"]


def test_a_second_ctrl_c_does_not_wait(world: World) -> None:
    def stop() -> None:
        signal.raise_signal(signal.SIGINT)
        world.acts.append("waited")

    world.on_look = lambda: signal.raise_signal(signal.SIGINT) if world.looks == 1 else None
    with pytest.raises(KeyboardInterrupt):
        stay(world.directory, start=world.start, ready=lambda: None, stop=stop)
    assert world.acts == ["start"]
