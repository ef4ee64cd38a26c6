"""Who is told when the names in requests may stand for something else."""

from __future__ import annotations

from millrace.core.world import World


def test_everybody_who_watches_hears_of_every_change_in_the_order_in_which_they_came() -> None:
    world, heard = World(), list[str]()
    world.watch(lambda: heard.append("first"))
    world.watch(lambda: heard.append("second"))
    world.changed()
    world.changed()
    assert heard == ["first", "second", "first", "second"]


def test_who_comes_later_hears_nothing_of_earlier_changes() -> None:
    world, heard = World(), list[str]()
    world.changed()
    world.watch(lambda: heard.append("late"))
    assert heard == []
    world.changed()
    assert heard == ["late"]
