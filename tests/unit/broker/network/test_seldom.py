"""What others can cause as often as they like fills no log."""

from __future__ import annotations

import logging

import pytest

from millrace.broker.network.seldom import INTERVAL_S, TOLD_MAX, Seldom


def test_a_few_are_told_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"))
    for _ in range(TOLD_MAX + 7):
        seldom.tell(100.0, "again", peer="a")
    assert len(caplog.records) == TOLD_MAX
    seldom.tell(100.0 + INTERVAL_S, "again", peer="b")
    last = caplog.records[-1]
    assert (last.__dict__["peer"], last.__dict__["not_told"]) == ("b", 7)
    seldom.tell(100.0 + INTERVAL_S, "again", peer="c")
    assert "not_told" not in caplog.records[-1].__dict__
