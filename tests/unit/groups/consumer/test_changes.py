"""What a change leads to: a higher epoch only where assignments depend on it, and a target not too often."""

from __future__ import annotations

import pytest

from millrace.groups.consumer.changes import preferred_assignor
from millrace.groups.consumer.commands import ConsumerSettings, PatternsResolved
from millrace.groups.consumer.member import ConsumerMember
from tests.unit.groups.consumer.test_rules import beat, join
from tests.unit.groups.consumer_lab import GROUP, Lab

KNOWN = ("uniform", "range")


@pytest.mark.parametrize(
    "wishes, chosen",
    [
        ([], "uniform"),
        ([None, None], "uniform"),
        (["range", None], "range"),
        (["range", "uniform"], "uniform"),
        (["range", "uniform", "range"], "range"),
        (["gone", "gone", "range"], "range"),
    ],
)
def test_the_assignor_is_what_most_ask_for_and_a_draw_goes_to_the_brokers_first(
    wishes: list[str | None], chosen: str
) -> None:
    members = [ConsumerMember(member_id=str(n), server_assignor=wish) for n, wish in enumerate(wishes)]
    assert preferred_assignor(members, KNOWN) == chosen


def test_the_epoch_grows_with_what_assignments_depend_on_and_nothing_else() -> None:
    lab = Lab()
    lab.set_topic("t", 2)
    lab.ok(join("a"))
    first = lab.group.epoch
    lab.ok(beat("a", lab.group.members["a"].epoch))
    lab.set_topic("other", 1)
    lab.ok(beat("a", lab.group.members["a"].epoch))
    assert lab.group.epoch == first, "nobody is subscribed to the other topic"
    lab.set_topic("t", 3)
    lab.ok(beat("a", lab.group.members["a"].epoch))
    assert lab.group.epoch == lab.group.assignment_epoch == first + 1


def test_a_new_target_waits_until_the_last_one_is_old_enough() -> None:
    lab = Lab(ConsumerSettings(assignment_interval_ms=1_000))
    lab.set_topic("t", 2)
    lab.ok(join("a"))
    lab.ok(join("b"))
    assert lab.group.assignment_epoch < lab.group.epoch
    assert "b" not in lab.group.target
    lab.now_ms += 1_000
    lab.ok(beat("b", lab.group.members["b"].epoch))
    assert lab.group.assignment_epoch == lab.group.epoch
    assert set(lab.group.target) == {"a", "b"}


def test_a_clock_that_was_set_back_keeps_no_group_from_its_target() -> None:
    lab = Lab(ConsumerSettings(assignment_interval_ms=1_000))
    lab.set_topic("t", 2)
    lab.ok(join("a"))
    lab.now_ms -= 500_000
    lab.ok(join("b"))
    assert lab.group.assignment_epoch == lab.group.epoch


def test_a_pattern_is_resolved_for_its_subscribers_and_goes_with_the_last() -> None:
    lab = Lab()
    x1 = lab.set_topic("x1", 1)
    lab.ok(join("a", names=(), pattern="x.*", resolved={"x.*": frozenset({"x1"})}))
    epoch = lab.group.epoch
    assert lab.group.target["a"] == {x1: frozenset({0})}
    lab.submit(PatternsResolved(GROUP, {"x.*": frozenset({"x1"}), "y.*": frozenset({"x1"})}))
    assert (lab.group.epoch, set(lab.group.patterns)) == (epoch, {"x.*"}), "nothing is new to anybody"
    lab.submit(PatternsResolved(GROUP, {"x.*": frozenset()}))
    assert lab.group.epoch == epoch + 1
    lab.pass_time(lab.settings.session_timeout_ms)
    assert not lab.group.patterns
