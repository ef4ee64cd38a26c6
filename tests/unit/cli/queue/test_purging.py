"""Emptying a queue moves its group to the ends of now."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import purging
from tests.unit.cli.fakes import ADDRESS
from tests.unit.cli.queue.conftest import KnownGroup


def test_a_group_is_moved_to_the_ends(known: KnownGroup) -> None:
    plan = purging.plan(ADDRESS, "g")
    assert plan == ({("t", 0): 3, ("t", 1): 3}, 2)
    purging.purge(ADDRESS, "g", plan.ends)
    assert known.altered == plan.ends


def test_a_group_with_members_is_left_alone(known: KnownGroup) -> None:
    known.members = [SimpleNamespace(), SimpleNamespace()]
    with pytest.raises(RequestFailed, match="g has 2 members: stop them first"):
        purging.purge(ADDRESS, "g", {("t", 0): 3})
    assert known.altered == {}
    with pytest.raises(RequestFailed, match="no such share group"):
        purging.plan(ADDRESS, "h")
