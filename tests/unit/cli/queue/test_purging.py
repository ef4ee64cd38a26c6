"""Emptying a queue moves its group to the ends of now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.group import share_groups
from millrace.cli.queue import group_settings, purging
from tests.unit.cli.fakes import ADDRESS
from tests.unit.cli.queue.conftest import KnownGroup


def test_a_group_is_moved_to_the_ends(known: KnownGroup) -> None:
    plan = purging.plan(ADDRESS, "g")
    assert plan == ({("t", 0): 3, ("t", 1): 3}, 2)
    purging.purge(ADDRESS, "g", plan.ends)
    assert known.altered == plan.ends


def test_a_group_with_members_is_paused_while_it_is_moved(
    known: KnownGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.members = [SimpleNamespace(), SimpleNamespace()]
    refusals = [RequestFailed("the group is not empty")]
    paused = []
    alter = share_groups.alter

    def refuse_first(address: Any, group: str, offsets: Any) -> None:
        paused.append(known.settings.get(group_settings.PAUSE))
        if refusals:
            raise refusals.pop()
        alter(address, group, offsets)

    monkeypatch.setattr(share_groups, "alter", refuse_first)
    purging.purge(ADDRESS, "g", {("t", 0): 3})
    assert known.altered == {("t", 0): 3}
    assert (paused, known.settings) == (["true", "true"], {})


def test_a_group_that_was_paused_stays_so_and_one_that_cannot_be_moved_goes_on(
    known: KnownGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.members = [SimpleNamespace()]
    known.settings = {group_settings.PAUSE: "true"}
    purging.purge(ADDRESS, "g", {("t", 0): 3})
    assert known.settings == {group_settings.PAUSE: "true"}

    def refuse(*_: object) -> None:
        raise RequestFailed("the group is not empty")

    known.settings = {}
    monkeypatch.setattr(share_groups, "alter", refuse)
    monkeypatch.setattr(purging, "PAUSE_S", 0.0)
    with pytest.raises(RequestFailed, match="not empty"):
        purging.purge(ADDRESS, "g", {("t", 0): 3})
    assert known.settings == {}


def test_an_unknown_group_is_refused(known: KnownGroup) -> None:
    with pytest.raises(RequestFailed, match="no such share group"):
        purging.plan(ADDRESS, "h")
