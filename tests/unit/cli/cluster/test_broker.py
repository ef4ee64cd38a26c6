"""`millrace broker unregister`: refused in words while the broker holds something."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from millrace.cli import broker_requests
from millrace.cli.clients import RequestFailed
from millrace.cli.cluster import unregistration
from millrace.cli.cluster.broker import broker
from millrace.cli.reassign import reassignments
from tests.unit.cli.fakes import FakeBroker


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    numbers: list[int] = []
    monkeypatch.setattr(broker_requests, "connected", FakeBroker({}).connected)
    monkeypatch.setattr(reassignments, "read_layout", lambda _connection: "the layout")
    monkeypatch.setattr(
        unregistration, "refusal", lambda layout, node_id: f"{layout} needs it" if node_id == 7 else None
    )
    monkeypatch.setattr(unregistration, "unregister", lambda _connection, node_id: numbers.append(node_id))
    return numbers


def test_a_broker_that_holds_nothing_is_forgotten(forgotten: list[int]) -> None:
    result = CliRunner().invoke(broker, ["unregister", "3"])
    assert (result.exit_code, result.output) == (0, "unregistered broker 3\n")
    assert forgotten == [3]


def test_a_broker_that_is_needed_is_kept_with_the_reason(forgotten: list[int]) -> None:
    result = CliRunner().invoke(broker, ["unregister", "7"])
    assert isinstance(result.exception, RequestFailed)
    assert str(result.exception) == "the layout needs it"
    assert forgotten == []


@pytest.mark.parametrize("word", ["-1", "x", ""])
def test_what_is_no_number_of_a_broker_is_wrong_usage(word: str) -> None:
    assert CliRunner().invoke(broker, ["unregister", "--", word]).exit_code == 2
