"""Epochs and targets of share groups: what makes them grow, and what does not."""

from __future__ import annotations

from millrace.groups.share.commands import ShareGroupSettings, ShareHeartbeat
from tests.unit.groups.share_lab import GROUP, ShareLab, numbers


def test_the_epoch_grows_with_what_assignments_depend_on_and_nothing_else() -> None:
    lab = ShareLab()
    lab.set_topic("t", 2)
    lab.join("a")
    before = lab.shares.epoch
    lab.set_topic("other", 1)
    lab.stay("a")
    lab.beat(ShareHeartbeat(GROUP, "a", before, rack="r", client_id="c"))
    assert (lab.shares.epoch, lab.shares.members["a"].rack) == (before, "r")
    lab.beat(ShareHeartbeat(GROUP, "a", before, topic_names=["t"]))
    assert lab.shares.epoch == before, "the same subscription again is no news"
    lab.beat(ShareHeartbeat(GROUP, "a", before, topic_names=["t", "other"]))
    assert lab.shares.epoch > before


def test_who_unsubscribes_loses_the_partitions_at_once() -> None:
    lab = ShareLab(ShareGroupSettings(assignment_interval_ms=1_000_000))
    lab.set_topic("t", 1)
    lab.set_topic("u", 1)
    lab.join("a", "t", "u")
    topic = lab.image.topics["u"].topic_id
    epoch = lab.shares.members["a"].epoch
    answer = lab.beat(ShareHeartbeat(GROUP, "a", epoch, topic_names=["u"]))
    assert list(answer.assignment or ()) == [topic], "although no assignment is due"


def test_a_clock_that_was_set_back_keeps_nobody_from_an_assignment() -> None:
    lab = ShareLab(ShareGroupSettings(assignment_interval_ms=10_000))
    lab.set_topic("t", 2)
    lab.join("a")
    lab.now_ms -= 500_000
    assert numbers(lab.join("b")) == [1]
