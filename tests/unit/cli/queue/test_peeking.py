"""A look into a queue begins where its group does, and takes nothing."""

from __future__ import annotations

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import peeking
from tests.unit.cli.fakes import ADDRESS
from tests.unit.cli.queue.conftest import KnownGroup


def peeked(limit: int = 10, *topics: str) -> list[tuple[int | None, int | None]]:
    return [(each.partition, each.offset) for each in peeking.first_messages(ADDRESS, "g", topics, limit)]


def test_messages_begin_where_the_group_does(known: KnownGroup) -> None:
    assert peeked() == [(0, 1), (0, 2)]
    assert peeked(1) == [(0, 1)]
    known.settings["share.auto.offset.reset"] = "earliest"
    assert peeked() == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_unknown_groups_and_topics_are_errors(known: KnownGroup) -> None:
    with pytest.raises(RequestFailed, match="nothing to do with topic u"):
        peeked(1, "u")
    with pytest.raises(RequestFailed, match="no such share group: h"):
        list(peeking.first_messages(ADDRESS, "h", (), 1))
    assert peeked(1, "t") == [(0, 1)]
    assert known.altered == {}
