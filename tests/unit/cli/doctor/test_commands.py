"""`millrace doctor`: which checks are made for which options, and when it ends as failed."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from millrace.cli.doctor import checks
from millrace.cli.doctor.checks import Finding, Status
from millrace.cli.doctor.commands import doctor


def fine(check: str) -> Finding:
    return Finding(check=check, status=Status.OK, detail="well")


class Machine:
    """A machine on which all is well, but for what a test breaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ports: dict[int, Status] = {}
        self.advertised: list[tuple[object, ...]] = []
        for name in ("python", "versions", "event_loop", "open_files", "clock"):
            monkeypatch.setattr(checks, f"check_{name}", lambda name=name: fine(name))
        monkeypatch.setattr(checks, "check_data_directory", lambda _path: [fine("data directory")])
        monkeypatch.setattr(checks, "check_port", self._port)
        monkeypatch.setattr(checks, "check_advertised", self._advertised)

    def _port(self, _host: str, port: int, *, what: str) -> Finding:
        return Finding(check=what, status=self.ports.get(port, Status.OK), detail=str(port), fix="stop it")

    def _advertised(self, host: str, port: int, *, listen_port: int) -> Finding:
        self.advertised.append((host, port, listen_port))
        return fine("advertised")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def run(*words: str) -> tuple[Result, list[dict[str, str]]]:
    result = CliRunner().invoke(doctor, [*words, "--json"])
    return result, [orjson.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("machine")
def test_a_machine_on_which_all_is_well_passes(tmp_path: Path) -> None:
    result, findings = run("--data-dir", str(tmp_path), "--listen", "127.0.0.1:19092")
    assert result.exit_code == 0, result.output
    names = [finding["check"] for finding in findings]
    assert names[:5] == ["python", "versions", "event_loop", "open_files", "clock"]
    assert {"configuration", "data directory", "listener PLAINTEXT"} <= set(names)
    reach = next(finding for finding in findings if finding["check"] == "reach of PLAINTEXT")
    assert reach["detail"].startswith("only clients on this machine")


def test_a_port_that_is_taken_fails(machine: Machine, tmp_path: Path) -> None:
    machine.ports[19092] = Status.FAIL
    result = CliRunner().invoke(doctor, ["--data-dir", str(tmp_path), "--listen", "127.0.0.1:19092"])
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if line.startswith("listener PLAINTEXT")]
    assert line.split()[2:] == ["FAIL", "19092", "stop", "it"]


def test_the_port_of_metrics_fails_only_if_somebody_asked_for_it(machine: Machine, tmp_path: Path) -> None:
    words = ("--data-dir", str(tmp_path), "--listen", "127.0.0.1:19092")
    _, findings = run(*words)
    (port,) = [int(each["detail"]) for each in findings if each["check"] == "metrics listener"]
    machine.ports[port] = Status.FAIL
    result, findings = run(*words)
    assert result.exit_code == 0
    assert findings[-1]["status"] == Status.WARN.value
    assert findings[-1]["fix"] == "choose another metrics.listener"
    result, findings = run(*words, "--set", f"metrics.listener=127.0.0.1:{port}")
    assert result.exit_code == 1
    assert findings[-1]["status"] == Status.FAIL.value


@pytest.mark.usefixtures("machine")
def test_each_of_several_directories_is_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    _, findings = run("--data-dir", str(one), "--data-dir", str(two))
    names = [each["check"] for each in findings if each["check"].startswith("data directory")]
    assert names == [f"data directory {one}", f"data directory {two}"]


def test_the_address_that_clients_are_told_is_tried(machine: Machine, tmp_path: Path) -> None:
    run("--data-dir", str(tmp_path), "--set", "listeners=PLAINTEXT://0.0.0.0:19092",
        "--set", "advertised.listeners=PLAINTEXT://example:19093")  # fmt: skip
    assert machine.advertised == [("example", 19093, 19092)]


@pytest.mark.usefixtures("machine")
def test_a_configuration_that_is_wrong_is_a_finding_like_any_other(tmp_path: Path) -> None:
    result, findings = run("--data-dir", str(tmp_path), "--set", "num.partitions=many")
    assert result.exit_code == 1
    assert findings[-1]["check"] == "configuration"
    assert "num.partitions=many" in findings[-1]["detail"]
    assert findings[-1]["fix"] == "`millrace config docs` explains every setting"
