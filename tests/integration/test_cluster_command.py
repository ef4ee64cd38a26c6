"""`millrace cluster`: brokers and an etcd on one machine, started, shown, killed and stopped by command."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.client.security import read_security
from millrace.core.properties import parse_properties
from tests.harness.etcd import lasting_port
from tests.harness.millrace import MILLRACE, run_millrace
from tests.harness.process import eventually

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0


PORT_OFFSETS = (1, 2, 100, 101, 102, 200, 201)
"""Of three brokers, their metrics and an etcd."""


class Commands:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base_port = lasting_port(*PORT_OFFSETS)
        self.bootstrap = f"127.0.0.1:{self.base_port}"

    def run(self, *words: str) -> str:
        done = run_millrace("cluster", *words, "--data-dir", str(self.directory), timeout_s=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> str:
        words = ("--brokers", "3", "--workers-per-host", "2", "--base-port", str(self.base_port))
        return self.run("up", *words)

    def status(self) -> dict[int, dict[str, Any]]:
        lines = self.run("status", "--json").splitlines()
        return {state["id"]: state for state in map(json.loads, lines)}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "cluster")
    yield commands
    run_millrace("cluster", "down", "--data-dir", str(commands.directory), timeout_s=DEADLINE_S)


def test_a_cluster_goes_up_loses_a_broker_gets_it_back_and_goes_down(commands: Commands) -> None:
    shown = commands.up()
    assert f"127.0.0.1:{commands.base_port + 2}" in shown
    states = commands.status()
    assert [(state["rack"], state["state"]) for state in states.values()] == [
        ("host-1", "running"),
        ("host-1", "running"),
        ("host-2", "running"),
    ]
    assert sum(state["controller"] for state in states.values()) == 1

    created = run_millrace(
        *("topic", "create", "t", "--partitions", "6", "--replication-factor", "2"),
        *("--bootstrap-server", commands.bootstrap),
    )
    assert created.returncode == 0, created.stderr
    states = commands.status()
    assert [state["partitions_led"] for state in states.values()] == [2, 2, 2]
    # Two of three brokers share a host, so the third one has a copy of everything.
    assert states[3]["replicas"] == states[3]["replicas_in_sync"] == 6

    commands.run("kill", "2")
    eventually(lambda: commands.status()[2]["state"] == "down", DEADLINE_S, pause_s=0.5)
    eventually(lambda: commands.status()[2]["partitions_led"] == 0, DEADLINE_S, pause_s=0.5)
    states = commands.status()
    assert states[1]["partitions_led"] + states[3]["partitions_led"] == 6

    again = run_millrace("cluster", "kill", "2", "--data-dir", str(commands.directory))
    assert again.returncode == 1
    assert "broker 2 does not run" in again.stderr

    commands.up()
    eventually(lambda: is_in_sync(commands.status()[2]), DEADLINE_S, pause_s=0.5)

    drain_broker_2(commands)
    assert (commands.status()[2]["replicas"], commands.status()[3]["replicas"]) == (0, 6)
    commands.run("down")
    assert all(state["state"] == "down" for state in commands.status().values())


def is_in_sync(state: dict[str, Any]) -> bool:
    return bool(state["replicas"] == state["replicas_in_sync"] > 0)


def drain_broker_2(commands: Commands) -> None:
    plan = str(commands.directory / "plan.json")
    for words in (
        ("generate", "--drain", "2", "--output", plan),
        ("execute", plan, "--wait"),
        ("verify", plan),
    ):
        done = run_millrace(
            "reassign", *words, "--bootstrap-server", commands.bootstrap, timeout_s=DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    done = run_millrace("cluster", "status", "--data-dir", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "`millrace cluster up` starts one" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("way", ["Ctrl-C", "cluster down"])
def test_a_cluster_in_the_foreground_lives_as_long_as_its_command(commands: Commands, way: str) -> None:
    words = ("cluster", "up", "--foreground", "--brokers", "1", "--base-port", str(commands.base_port))
    process = subprocess.Popen(
        [MILLRACE, *words, "--data-dir", str(commands.directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("bootstrap servers:"):
                break
        assert commands.status()[1]["state"] == "running"
        if way == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            commands.run("down")
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.stdout.close()
    assert commands.status()[1]["state"] == "down"
    written = (commands.directory / "broker-1.out").read_text()
    assert "stopped" in written


def test_a_secured_cluster_is_used_with_the_settings_that_it_leaves(commands: Commands) -> None:
    """And by nobody without them. One of its brokers is lost meanwhile."""
    words = ("--brokers", "3", "--base-port", str(commands.base_port), "--secure")
    shown = commands.run("up", *words)
    security = commands.directory / "security"
    assert f"MILLRACE_CLIENT_CONFIG={security}/client.properties" in shown
    assert [state["state"] for state in commands.status().values()] == ["running"] * 3
    login = ("--command-config", str(security / "client.properties"))

    def millrace(*words: str, stdin: str = "") -> str:
        done = run_millrace(*words, *login, timeout_s=DEADLINE_S, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    millrace("topic", "create", "orders", "--partitions", "3", "--replication-factor", "3")
    eventually(lambda: all(state["replicas_in_sync"] for state in commands.status().values()), DEADLINE_S)
    millrace("produce", "orders", stdin="".join(f"order {number}\n" for number in range(100)))
    commands.run("kill", "1")
    found = millrace("consume", "orders")
    assert sorted(found.splitlines()) == sorted(f"order {number}" for number in range(100))
    server = f"127.0.0.1:{commands.base_port + 1}"
    stranger = run_millrace("topic", "list", "-b", server, "--timeout", "2")
    assert stranger.returncode != 0
    password = read_security(
        parse_properties((security / "client.librdkafka.properties").read_text())
    ).password
    assert password is not None
    for state in commands.status().values():
        if state["pid"] is not None:
            assert password not in Path(f"/proc/{state['pid']}/cmdline").read_text()
    for output in commands.directory.glob("*.out"):
        assert password not in output.read_text()
